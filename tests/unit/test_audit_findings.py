"""What is shown of audits, and what a person may ask for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from drkernel_q.audit import Audit
from drkernel_q.cli import auditing, drkq, findings, verdict
from drkernel_q.errors import BadProblem
from drkernel_q.problem import builtin_files
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from tests.values import (
    H200,
    SOFTMAX,
    a_reply,
    a_request,
    an_audit,
    an_audit_reply,
    an_audit_request,
    an_evaluation,
)

REFERENCE = "size = 8\nclass Model: ...\ndef get_inputs(): ...\n"
OPTIONS = {
    "device": "cpu",
    "kernelbench": None,
    "overrides": (),
    "compile": False,
    "deadline_s": 60.0,
    "force": False,
    "as_json": False,
    "target": None,
}


def test_a_line_says_whether_speed_counts_and_why_not() -> None:
    assert findings.line(SOFTMAX, an_audit()) == "softmax   speed counts   1 ms"
    flawed = an_audit(zeros_pass=True, reference_ms=0.01, gaps={"flops": "too odd"})
    assert findings.line(SOFTMAX, flawed) == (
        "softmax   no speed reward   degenerate: zeros would pass   launch_bound: a call takes 10 us   "
        "flops not measured: too odd   0.01 ms"
    )
    assert findings.line(SOFTMAX, an_audit(unusable="It\nraises.")) == "softmax   unusable   It raises."


def test_a_table_has_a_row_for_each_problem_and_counts_flags() -> None:
    rows: list[tuple[str, Audit]] = [
        ("a", an_audit(flops=3_000_000_000, peak_bytes=10**9)),
        ("b", an_audit(zeros_pass=True)),
        ("c", an_audit(unusable="no | memory")),
    ]
    lines = findings.markdown(rows).splitlines()
    assert len({line.count("|") for line in lines[:5]}) == 1, "every row has every cell"
    assert lines[2] == "| a |  | 1 |  |  | 1e-07 | 0.00922 | 3 | 1 |"
    assert lines[3].startswith("| b | degenerate |")
    assert lines[4].startswith("| c | unusable (no / memory) |")
    assert lines[-1] == "3 problems; speed is rewarded on 1. Flags: degenerate 1, unusable 1."


def test_the_document_of_an_evaluation_has_the_reward_that_the_audit_leaves() -> None:
    request = a_request()
    reply = a_reply(request, an_evaluation(speedup=2.0, profile_ratio=1.0))
    gated = an_audit(other_passes=True)
    assert verdict.document(request, reply, {})["reward"] == 3.0
    assert verdict.document(request, reply, {H200: gated})["reward"] == 1.0
    assert verdict.document(request, reply, {"cpu": gated})["reward"] == 3.0, "that of another kind of device"


def test_stored_audits_are_found_and_a_store_that_is_not_there_holds_none() -> None:
    settings = load_settings()
    assert findings.stored_audits(settings, [SOFTMAX]) == {}
    with Store.open(settings.store) as store:
        store.upgrade()
        request = an_audit_request()
        store.record(request, an_audit_reply(request))
    assert findings.stored_audits(settings, [SOFTMAX]) == {SOFTMAX.hash: {H200: an_audit()}}


def test_names_files_folders_and_suites_are_taken_once(tmp_path: Path) -> None:
    level = tmp_path / "kb" / "KernelBench" / "level2"
    level.mkdir(parents=True)
    (level / "7_Chain.py").write_text(REFERENCE)
    (level / "8_Broken.py").write_text("class Model(:")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "one.py").write_text(REFERENCE + "# one\n")
    options = OPTIONS | {"kernelbench": tmp_path / "kb"}
    order = auditing.prepare(("softmax", str(folder)), ("builtin", "kernelbench/2", "kernelbench/2"), options)
    names = [problem.name for problem in order.problems]
    assert names[:2] == ["softmax", "one"]
    assert sorted(names) == sorted([*builtin_files(), "one", "2/7_Chain"]), "a broken file of a suite is passed over"
    small = auditing.prepare((str(folder),), (), options | {"overrides": ("size=2",)})
    assert small.problems[0].constants == {"size": 2}
    with pytest.raises(BadProblem, match="kernelbench/1 needs a checkout"):
        auditing.prepare((), ("kernelbench/1",), OPTIONS)


@pytest.fixture
def run() -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(drkq, ["problem", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ([], 2, "Name problems, or a set of them by --suite."),
        (["softmxa"], 65, "did you mean `softmax`?"),
        (["softmax", "--set", "rows=1"], 65, "it has batch_size, features."),
        (["--suite", "kernelbench/1"], 65, "needs a checkout of KernelBench"),
    ],
)
def test_bad_input_is_told_before_anything_is_started(
    run: Callable[..., Result], words: list[str], code: int, complaint: str
) -> None:
    result = run("audit", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert complaint in result.stderr


def test_show_tells_the_flags_that_are_stored(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(REFERENCE)
    assert json.loads(run("show", path, "--json").stdout)["flags"] == {}
    problem = auditing.prepare((str(path),), (), OPTIONS).problems[0]
    with Store.open(load_settings().store) as store:
        store.upgrade()
        request = an_audit_request(problem)
        store.record(request, an_audit_reply(request, an_audit(zeros_pass=True)))
    flags = json.loads(run("show", path, "--json").stdout)["flags"]
    assert flags == {H200: [{"code": "degenerate", "detail": "zeros would pass"}]}
    assert run("show", path).stderr == f"{H200}: degenerate: zeros would pass\n"
