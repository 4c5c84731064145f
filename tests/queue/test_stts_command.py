"""`drkq stts` as people run it: a script instead of a model, the real queue, and a kill in the middle."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from tests.need import PATIENT_S, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.redis]

GOOD = (ROOT / "tests/kernels/softmax.py").read_text(encoding="utf-8")
ANSWERS = ["I do not know.", f"It is this:\n```python\n{GOOD}\n```"]


def drkq(*words: str | Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "drkernel_q", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def stack() -> Iterator[None]:
    """One stack for all commands of a test."""
    with drkq("up", "--device", "cpu") as starting:
        assert starting.wait(timeout=PATIENT_S) == 0
    yield
    with drkq("down") as ending:
        ending.wait(timeout=PATIENT_S)


@pytest.mark.usefixtures("stack")
def test_a_search_that_was_killed_goes_on_and_claims_what_holds(tmp_path: Path) -> None:
    script, best = tmp_path / "script.json", tmp_path / "best.py"
    script.write_text(json.dumps(ANSWERS))
    words = ("stts", "softmax", "--model", f"scripted:{script}", "--device", "cpu", "--timing-budget", "0.2")
    with drkq(*words, "--turns", "2", "--run", "s") as first:
        assert first.stderr is not None
        assert any("turn 1" in line for line in first.stderr)
        first.kill()

    with drkq(*words, "--turns", "2", "--run", "s", "--json", "-o", best) as second:
        out, err = second.communicate(timeout=PATIENT_S)
    assert second.returncode == 0, err
    assert "The run s goes on." in err
    assert "turn 1 (stored)   no kernel" in err
    (found,) = json.loads(out)["problems"]
    (chain,) = found["chains"]
    assert [turn["outcome"] for turn in chain["turns"]] == [None, "correct"]
    assert chain["stopped"] == "turns"
    claim = found["claim"]
    assert (claim["turn"], claim["kernel"]["source"].strip()) == (2, GOOD.strip())
    assert claim["evaluation"]["outcome"] == "correct"
    assert claim["evaluation"]["speedup"] != chain["turns"][1]["speedup"], "it was timed again"
    with Store.open(load_settings().store) as store:
        (trajectory,) = store.trajectories("s")
        assert [turn.completion for turn in trajectory.turns] == ANSWERS
        assert store.status().rows["evaluations"] == 2
    text = best.read_text()
    assert GOOD.strip() in text
    assert text.startswith("# A kernel for softmax (b2:")
