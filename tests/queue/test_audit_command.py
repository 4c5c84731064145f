"""`drkq problem audit` as people run it: from a shell, with no service, through the embedded stack."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drkernel_q.problem import load_problem
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from tests.judging import EXAMPLES, builtin
from tests.need import PATIENT_S
from tests.values import an_audit, an_audit_reply, an_audit_request

pytestmark = [pytest.mark.slow, pytest.mark.redis]

MODEL = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"
INPUTS = "def get_inputs():\n    return [torch.randn(8, 16)]\n"


def drkq(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "drkernel_q", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, check=False)


@pytest.fixture
def stack() -> Iterator[None]:
    """One stack for all commands of a test."""
    started = drkq("up", "--device", "cpu")
    assert started.returncode == 0, started.stderr
    yield
    drkq("down")


@pytest.mark.usefixtures("stack")
def test_audits_are_shown_stored_and_gate_rewards(tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    zeros, bad, table = folder / "zeros.py", folder / "bad.py", tmp_path / "table.md"
    zeros.write_text(MODEL.format("torch.softmax(x, -1) * 0") + INPUTS)
    bad.write_text(MODEL.format("x.nothing()") + INPUTS)
    first = drkq("problem", "audit", "softmax", zeros, bad, "--device", "cpu", "-o", table)
    assert (first.returncode, first.stdout.count("\n")) == (0, 3), first.stderr
    lines = {line.split()[0]: line for line in first.stdout.splitlines()}
    assert lines["softmax"].startswith("softmax   speed counts   ")
    assert "no speed reward   degenerate: zeros would pass" in lines["zeros"]
    assert "bad   unusable   Model of bad raises AttributeError" in lines["bad"]
    assert "| zeros | degenerate; constant_output; input_insensitive (input 0) |" in table.read_text()
    assert "3 problems; speed is rewarded on 1." in table.read_text()

    again = drkq("problem", "audit", zeros, folder, "--device", "cpu", "--json")
    assert again.returncode == 0, again.stderr
    documents = json.loads(again.stdout)
    assert [each["problem"]["name"] for each in documents] == ["zeros", "bad"]
    with Store.open(load_settings().store) as store:
        audit = store.audits(load_problem(zeros).hash)["cpu"]
    assert documents[0]["durations_s"] == audit.durations_s, "the second time nothing was measured"

    shown = drkq("problem", "show", zeros)
    assert shown.stdout == zeros.read_text()
    assert "cpu: degenerate: zeros would pass" in shown.stderr

    softmax = builtin("softmax")
    with Store.open(load_settings().store) as store:
        request = an_audit_request(softmax)
        later = an_audit_reply(request, an_audit("cpu", other_passes=True))
        store.record(request, later.model_copy(update={"finished_at": "2999-01-01T00:00:00+00:00"}))
    judged = drkq("eval", EXAMPLES / "softmax.py", "--problem", "softmax", "--device", "cpu", "--json")
    document = json.loads(judged.stdout)
    assert (document["outcome"], document["integrity"]) == ("correct", "clean")
    assert document["profile_ratio"] * document["speedup"] > 0
    assert document["reward"] == 1, "by that audit, speed on it is worth nothing"
