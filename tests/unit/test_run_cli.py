"""`drkq run` from the outside."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from drkernel_q.cli import drkq
from drkernel_q.kernel import Kernel
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.values import SOFTMAX, an_evaluation

FIRST, SECOND = "import triton\nBLOCK = 64\n", "import triton\nBLOCK = 128\n"


def a_turn(number: int, source: str | None, speedup: float | None) -> Turn:
    return Turn(
        number=number,
        prompt=(Message(role="user", content="Write a softmax."),),
        completion=f"Here it is, for the turn {number}.",
        kernel=None if source is None else Kernel(source=source),
        evaluation=None if speedup is None else an_evaluation(speedup=speedup, profile_ratio=0.9),
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("DRKQ_DATA_DIR", str(tmp_path / "data"))
    with Store.open(load_settings().store) as store:
        store.upgrade()
        store.add_problem(SOFTMAX)
        store.add_run("mine", kind="stts", settings={"turns": 3, "window": 4})
        store.add_run("other", kind="stts", settings={"turns": 3, "window": 0})
        turns = (a_turn(1, FIRST, 0.8), a_turn(2, None, None), a_turn(3, SECOND, 1.6))
        store.add_trajectory("mine", Trajectory(problem_hash=SOFTMAX.hash, turns=turns))
        store.add_trajectory("other", Trajectory(problem_hash=SOFTMAX.hash, turns=(a_turn(1, FIRST, 0.8),)))
    return lambda *words: CliRunner().invoke(drkq, ["run", *map(str, words)])


def test_list(run: Callable[..., Result]) -> None:
    rows = json.loads(run("list", "--kind", "stts", "--like", "m%", "--json").stdout)
    assert [(row["run"], row["turns"], row["best"]) for row in rows] == [("mine", 3, 1.6)]
    assert run("list", "--csv").stdout.splitlines()[0].startswith("run,kind,created_at")


def test_show_a_run(run: Callable[..., Result]) -> None:
    result = run("show", "mine")
    assert result.exit_code == 0, result.stderr
    assert "2 evaluated, 2 honest and correct, 0.0% rejected" in result.stdout
    assert "turn 3    Fast@1 100.0%  Fast@1.2 100.0%  Fast@1.5 100.0%  Fast@2 0.0%" in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["softmax", "1", "3", "2", "0", "1.6"]


def test_show_filters_turns(run: Callable[..., Result]) -> None:
    rows = json.loads(run("show", "mine", "--faster-than", "1.5", "--json").stdout)
    assert [row["turn"] for row in rows] == [3]
    assert len(json.loads(run("show", "mine", "--turns", "--json").stdout)) == 3


def test_show_a_turn_as_a_diff_to_the_last_kernel(run: Callable[..., Result]) -> None:
    """The turn in between had none."""
    lines = run("show", "mine", "--turn", "3", "--diff").stdout.splitlines()
    assert lines[0].startswith("softmax   trajectory 1   turn 3 of 3   correct   1.60x [1.44, 1.76]")
    assert lines[2:4] == ["--- turn 1", "+++ turn 3"]
    assert "-BLOCK = 64" in lines
    assert "+BLOCK = 128" in lines


def test_show_a_turn_whole(run: Callable[..., Result]) -> None:
    result = run("show", "mine", "--turn", "2", "--prompt")
    assert "no kernel" in result.stdout
    assert "--- user\nWrite a softmax." in result.stdout
    assert "Here it is, for the turn 2." in result.stdout
    document = json.loads(run("show", "mine", "--turn", "3", "--json").stdout)
    assert (document["run"], document["problem"], document["number"]) == ("mine", "softmax", 3)
    assert document["kernel"]["source"] == SECOND


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("show", "nobody"), 65, "There is no run named `nobody`"),
        (("show", "mine", "--turn", "9"), 65, "Trajectory 1 of softmax has 3 turns."),
        (("show", "mine", "--turn", "1", "--trajectory", "2"), 65, "none of number 2"),
        (("show", "mine", "--turn", "1", "--problem", "matmul"), 65, "no trajectory of that"),
        (("show", "mine", "--diff"), 2, "name it by --turn N"),
        (("diff", "mine", "nobody"), 65, "There is no run named `nobody`"),
    ],
)
def test_what_is_not_there_is_a_sentence(
    run: Callable[..., Result], words: tuple[str, ...], code: int, sentence: str
) -> None:
    result = run(*words)
    assert result.exit_code == code
    assert sentence in result.stderr


def test_compare(run: Callable[..., Result]) -> None:
    (row,) = json.loads(run("compare", "other", "mine", "--json").stdout)
    assert (row["one"], row["other"], row["change"]) == (0.8, 1.6, "faster")


def test_diff_shows_settings_and_kernels(run: Callable[..., Result]) -> None:
    lines = run("diff", "mine", "other").stdout.splitlines()
    assert '-  "window": 4' in lines
    assert '+  "window": 0' in lines
    assert "-BLOCK = 128" in lines
    assert "+BLOCK = 64" in lines
