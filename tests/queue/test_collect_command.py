"""`drkq collect` as people run it: a script climbs over generated solutions, the embedded stack judges them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from drkernel_q.cli import drkq
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from tests.need import PATIENT_S

pytestmark = [pytest.mark.slow, pytest.mark.redis]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(drkq, arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_climb_is_judged_stored_and_exported(tmp_path: Path) -> None:
    script, rows = tmp_path / "climb.py", tmp_path / "rows.jsonl"
    few = ("--problems", "1")
    run("problem", "generate", *few, "-o", str(tmp_path / "set"), "--script", str(script), "--turns", "2")
    (problem,) = (tmp_path / "set" / "problems").rglob("l1_*.py")
    wanted = ("--model", f"scripted:{script}", "--problems", str(problem), "--run", "climb", "--device", "cpu")
    less = ("--preset", "small", "--samples", "1", "--turns", "2", "--trials", "2", "--json")
    command = [sys.executable, "-m", "drkernel_q", "collect", *wanted, *less]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["finished"], found["turns"], found["kernels"], found["unjudged"]) == (1, 2, 2, 0)
    with Store.open(load_settings().store) as store:
        (trajectory,) = store.trajectories("climb")
    outcomes = [turn.evaluation and turn.evaluation.outcome.value for turn in trajectory.turns]
    assert outcomes[0] is not None
    assert outcomes[1] == "correct"
    run("dataset", "export", "--run", "climb", "--correct", "-o", str(rows))
    (row,) = map(json.loads, rows.read_text().splitlines())
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2
