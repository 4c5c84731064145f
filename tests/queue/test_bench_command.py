"""`drkq bench` as people run it: a folder of kernels, the real queue, and a second time from the store."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.need import ROOT

#: A problem that no machine has the memory for, and one with two outputs, of which one is whole numbers.
REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return {output}


def get_inputs():
    return [torch.rand({shape})]
"""
HUGE = REFERENCE.format(output="x * 2", shape="2**21, 2**21")
PAIR = REFERENCE.format(output="torch.topk(x, 3, dim=-1)", shape="32, 57")

pytestmark = [pytest.mark.slow, pytest.mark.redis]


def drkq(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "drkernel_q", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.timeout(250)
def test_a_folder_of_kernels_is_graded_once(tmp_path: Path) -> None:
    """One problem has no kernel, that of another is no Python, and a third cannot be run at all: nothing stops."""
    kernels, problems = tmp_path / "kernels", tmp_path / "problems"
    kernels.mkdir()
    problems.mkdir()
    shutil.copy(ROOT / "tests/kernels/softmax.py", kernels)
    (kernels / "gelu.py").write_text("this is no Python\n")
    for name, source in (("huge", HUGE), ("pair", PAIR)):
        (problems / f"{name}.py").write_text(source)
        (kernels / f"{name}.py").write_text(source.replace("class Model(", "class ModelNew("))
    suite = ("softmax", "gelu", "matmul", problems)
    words = ("bench", *suite, "--kernels", kernels, "--device", "cpu", "--backend", "any", "--run", "b")
    assert drkq("up", "--device", "cpu").returncode == 0
    try:
        first = drkq(*words, "--timing-budget", "0.2", "--format", "json")
        again = drkq(*words, "--timing-budget", "0.2", "--format", "csv")
    finally:
        drkq("down")
    assert first.returncode == 0, first.stderr
    (grade,) = json.loads(first.stdout)["grades"]
    assert (grade["problems"], grade["part"], grade["pick"]) == (5, "others", "last")
    assert grade["correct"]["value"] == pytest.approx(2 / 5)
    assert "huge: get_inputs() of the problem raises RuntimeError" in first.stderr
    assert "1 problems have fewer than 1 samples" in first.stderr
    assert "The run b goes on." in again.stderr
    (row,) = csv.DictReader(io.StringIO(again.stdout))
    assert float(row["correct"]) == pytest.approx(2 / 5)
