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

pytestmark = [pytest.mark.slow, pytest.mark.redis]


def drkq(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "drkernel_q", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.timeout(250)
def test_a_folder_of_kernels_is_graded_once(tmp_path: Path) -> None:
    """Two problems of three have a kernel, and that of one is no Python."""
    shutil.copy(ROOT / "tests/kernels/softmax.py", tmp_path / "softmax.py")
    (tmp_path / "gelu.py").write_text("this is no Python\n")
    words = ("bench", "softmax", "gelu", "matmul", "--kernels", tmp_path, "--device", "cpu", "--run", "b")
    assert drkq("up", "--device", "cpu").returncode == 0
    try:
        first = drkq(*words, "--timing-budget", "0.2", "--format", "json")
        again = drkq(*words, "--timing-budget", "0.2", "--format", "csv")
    finally:
        drkq("down")
    assert first.returncode == 0, first.stderr
    (grade,) = json.loads(first.stdout)["grades"]
    assert (grade["problems"], grade["part"], grade["pick"]) == (3, "others", "last")
    assert grade["correct"]["value"] == pytest.approx(1 / 3)
    assert "1 problems have fewer than 1 samples" in first.stderr
    assert "The run b goes on." in again.stderr
    (row,) = csv.DictReader(io.StringIO(again.stdout))
    assert float(row["correct"]) == pytest.approx(1 / 3)
