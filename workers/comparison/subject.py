"""Subject: one input, parameter or buffer of a reference that can be replaced for a call."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from workers.exchange.shared import flatten, leaves, unflatten

Outputs = Sequence[Tensor]


class Subject(NamedTuple):
    """One tensor to change, and another draw of it."""

    name: str
    kind: Literal["input", "parameter", "buffer"]
    tensor: Tensor
    drawn: Tensor
    run: Callable[[Tensor], Outputs | None]
    """Gives the outputs with the tensor replaced; None where the reference raises."""


def input_subjects(
    inputs: Sequence[Any], others: Sequence[Any], run: Callable[[Sequence[Any]], Outputs]
) -> Iterator[Subject]:
    """Yield the tensors of `inputs`, each with that of `others`, another draw; `run` makes a call."""

    def replaced(number: int, changed: Tensor) -> Outputs | None:
        tensors = leaves(inputs)
        tensors[number] = changed
        return _attempt(partial(run, with_leaves(inputs, tensors)))

    for number, (tensor, drawn) in enumerate(zip(leaves(inputs), leaves(others), strict=True)):
        yield Subject(f"input {number}", "input", tensor, drawn, partial(replaced, number))


def weight_subjects(model: nn.Module, other: nn.Module, run: Callable[[], Outputs]) -> Iterator[Subject]:
    """Yield the parameters and buffers of `model`, each with that of `other`, made under another seed."""

    def replaced(tensor: Tensor, changed: Tensor) -> Outputs | None:
        kept = tensor.clone()
        tensor.copy_(changed)
        try:
            return _attempt(run)
        finally:
            tensor.copy_(kept)

    others = dict(other.named_parameters()) | dict(other.named_buffers())
    parameters = dict(model.named_parameters())
    for name, weight in (parameters | dict(model.named_buffers())).items():
        drawn, tensor = others.get(name), weight.detach()
        if drawn is not None and (drawn.shape, drawn.dtype) == (tensor.shape, tensor.dtype):
            kind: Literal["parameter", "buffer"] = "parameter" if name in parameters else "buffer"
            yield Subject(name, kind, tensor, drawn.detach(), partial(replaced, tensor))


def with_leaves(values: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Any]:
    """Return nested values with other tensors in their places."""
    replaced: Sequence[Any] = unflatten(flatten(values, []), tensors)
    return replaced


def _attempt(run: Callable[[], Outputs]) -> Outputs | None:
    """Run; None where the reference refuses what it is given."""
    try:
        return run()
    except (torch.AcceleratorError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - trusted code raises what it likes about values that nobody drew for it
        return None
