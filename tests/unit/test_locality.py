"""Locality: what is known of references whose answer is known."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.judging import builtin
from workers.comparison import locality
from workers.comparison.locality import is_local
from workers.comparison.reference import Reference
from workers.exchange.shared import leaves


def draw(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    first, second = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    return first, second


@pytest.mark.parametrize(
    ("call", "shapes", "local"),
    [
        (torch.tanh, [(8, 32)], True),
        (torch.abs, [()], False),  # nothing to tell by
        (torch.add, [(8, 32), (8, 32)], True),
        (torch.add, [(8, 32), (32,)], True),
        (lambda x: (x.exp(), x > 0), [(8, 32)], True),
        (lambda x: x * float("nan"), [(8, 32)], False),
        (lambda x: torch.where(x > 0, x, float("nan")), [(8, 32)], True),
        (lambda x: torch.softmax(x, -1), [(8, 32)], False),
        (lambda x: x - x.max(), [(8, 32)], False),
        (lambda x: torch.cumsum(x, 0), [(8, 32)], False),
        (lambda x: x.mT, [(16, 16)], False),
        (lambda x: x.roll(1), [(64,)], False),
        (lambda x: x.sum(-1), [(8, 32)], False),
        (torch.ones_like, [(8, 32)], False),
        (lambda x, y: x * y.sum(), [(8, 32), (8, 32)], False),
        (lambda x: (x.exp(), x.flip(0)), [(8, 32)], False),
        (torch.matmul, [(16, 16), (16, 16)], False),
    ],
)
def test_what_is_local(call: Any, shapes: list[tuple[int, ...]], local: bool) -> None:
    inputs, others = draw(*shapes)
    before = [tensor.clone() for tensor in inputs]
    assert is_local(lambda values: call(*values), inputs, others, leaves([call(*inputs)])) is local
    assert all(map(torch.equal, inputs, before))


def test_what_a_reference_refuses_or_memory_forbids_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, others = draw((4, 4))

    def fussy(values: list[Tensor]) -> Tensor:
        if not torch.equal(values[0], inputs[0]):
            raise ValueError("of no use")
        return values[0]

    assert not is_local(fussy, inputs, others, inputs)
    monkeypatch.setattr(locality, "MOST_BYTES", 63)
    assert not is_local(lambda values: values[0].exp(), inputs, others, [inputs[0].exp()])


def test_inputs_that_do_not_vary_prove_nothing() -> None:
    inputs, others = ([torch.randn(8, 32), torch.ones(8, 32)] for _ in range(2))
    assert not is_local(lambda values: values[0] * values[1].sum(), inputs, others, [inputs[0] * inputs[1].sum()])


@pytest.mark.parametrize(("name", "reduction"), [("gelu", 1), ("softmax", 128), ("linear_gelu_scale", 64)])
def test_a_reference_knows_how_long_its_sums_may_be(name: str, reduction: int) -> None:
    reference = Reference(builtin(name).small(), "cpu", train=False)
    reference.build(0)
    expected = reference.expected(reference.inputs(1))
    assert expected.reduction == reduction
    assert reference.expected(reference.inputs(2)).reduction == reduction
