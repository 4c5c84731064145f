"""A kernel as a file: it is the kernel, it says what was found, and Python runs it."""

import ast
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem, find_problem
from drkernel_q.settings import load_settings
from drkernel_q.standalone import standalone
from tests.need import PATIENT_S
from tests.values import an_evaluation

OWN = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"


def written(problem: Problem, source: str, device_kind: str = "cpu") -> str:
    evaluation = an_evaluation(speedup=1.5, profile_ratio=0.8, device_kind=device_kind)
    return standalone(problem, Kernel(source=source), evaluation, name="best.py", origin="a test.")


def test_the_head_says_what_was_found() -> None:
    text = written(find_problem("softmax", load_settings()), OWN.format("x"), "sm_90/NVIDIA H200")
    head = text.split("\nimport torch")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    assert "# 1.5 times as fast as eager [1.35, 1.65]: reference 1 ms." in head
    assert "# 80.0% of the device time is its own." in head
    assert "# Judge it again: drkq eval best.py --problem softmax" in head


@given(st.text(alphabet=st.sampled_from("ab\"'\\\n#{} \t"), max_size=40))
def test_any_reference_stays_what_it_is(text: str) -> None:
    """But for white space at its ends."""
    tree = ast.parse(written(Problem(name="odd", source=f"x = {text!r}\n# {text!r} {{}}"), OWN.format("x")))
    (kept,) = (node.value.value for node in tree.body if isinstance(node, ast.Assign))  # type: ignore[attr-defined]
    assert kept.strip() == f"x = {text!r}\n# {text!r} {{}}".strip()


@pytest.mark.slow
@pytest.mark.parametrize(("made", "code"), [("torch.softmax(x, -1)", 0), ("torch.zeros_like(x)", 1)])
def test_it_runs_by_itself(made: str, code: int) -> None:
    text = written(find_problem("softmax", load_settings()), OWN.format(made))
    done = subprocess.run(
        [sys.executable, "-"], input=text, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("outputs agree" in done.stdout) == (code == 0)
