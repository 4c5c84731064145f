"""The recheck of timed outputs: the reference's own rounding passes, everything else is looked at in full."""

from typing import Any

import pytest
import torch
from torch import Tensor

from drkernel_q.problem import Problem
from workers.comparison.recheck import FULL, Recheck
from workers.comparison.reference import Reference

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1), x.argmax(-1)

def get_inputs():
    return [torch.randn(64, 256)]
"""


@pytest.fixture(scope="module")
def reference() -> Reference:
    reference = Reference(Problem(name="softmax", source=SOURCE), "cpu", train=False)
    reference.build(0)
    return reference


def honest(inputs: list[Any]) -> list[Tensor]:
    """Compute the same in another order, so that rounding differs."""
    x = inputs[0]
    numerator = torch.exp(x - x.max(-1, keepdim=True).values)
    return [numerator / numerator.flip(-1).sum(-1, keepdim=True), x.argmax(-1)]


def warmed(reference: Reference) -> Recheck:
    recheck = Recheck(reference)
    for seed in range(FULL):
        inputs = reference.inputs(seed)
        recheck.look(inputs, honest(inputs))
    assert not recheck.faults
    return recheck


def test_honest_outputs_pass_without_a_full_comparison(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    recheck = warmed(reference)
    monkeypatch.setattr(Reference, "expected", lambda *_: pytest.fail("compared in full"))
    for seed in range(100, 110):
        inputs = reference.inputs(seed)
        recheck.look(inputs, honest(inputs))
    assert recheck.count == FULL + 10
    assert not recheck.faults


def one_element(outputs: list[Tensor]) -> None:
    outputs[0][17, 3] += 1e-2


def one_index(outputs: list[Tensor]) -> None:
    outputs[1][5] = (outputs[1][5] + 1) % 256


def last_row(outputs: list[Tensor]) -> None:
    outputs[0][-1] = 0


def everything_a_little(outputs: list[Tensor]) -> None:
    outputs[0] *= 1.001


def not_a_number(outputs: list[Tensor]) -> None:
    outputs[0][0, 0] = torch.nan


@pytest.mark.parametrize("spoil", [one_element, one_index, last_row, everything_a_little, not_a_number])
def test_what_is_wrong_is_a_fault(reference: Reference, spoil: Any) -> None:
    recheck = warmed(reference)
    inputs = reference.inputs(1000)
    outputs = honest(inputs)
    spoil(outputs)
    recheck.look(inputs, outputs)
    assert len(recheck.faults) == 1


def test_what_is_less_exact_than_before_is_compared_in_full_and_may_be_right(reference: Reference) -> None:
    recheck = Recheck(reference)
    for seed in range(FULL):
        inputs = reference.inputs(seed)
        recheck.look(inputs, reference.outputs(inputs))
    inputs = reference.inputs(1000)
    recheck.look(inputs, honest(inputs))
    assert not recheck.faults
