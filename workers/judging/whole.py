"""Whole numbers: a trial on small integers, on which every order of summation is exact.

Nobody needs a tolerance there, so a term that is left out cannot hide in one: something is off by one. Asked are only
problems whose reference is itself exact on such inputs and weights, whatever it computes, and only where the numbers
stay so small that an honest kernel that is not exact (a product by Fourier transform, a power by logarithms) is off by
far less than half a unit.
"""

import contextlib
import copy
import functools
import math
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drkernel_q.correctness import ErrorPattern
from drkernel_q.errors import BadProblem
from workers.comparison.arithmetic import ROUNDINGS, largest_value
from workers.comparison.measure import Expected
from workers.comparison.pattern import find_pattern
from workers.comparison.reference import Reference
from workers.judging.probe import is_few, is_in_order, is_symmetric, with_each
from workers.judging.session import pack_inputs

#: Shares of elements that are not zero: the first that keeps sums small enough is taken.
DENSITIES = (0.67, 0.25, 0.06, 0.015, 0.004)
#: Elements at the edges of a tensor that are not zero, on average.
EDGE = 16
#: Numbers are far from zero if none is nearer to it than this share of the largest.
_FAR = 0.05
#: Units that an output may have.
_POWERS = tuple(2.0**-power for power in range(13))
#: Elements that are looked at first.
_FEW = 4096
#: How many units the largest number on the way may have, by the narrowest dtype of a tensor.
MOST_UNITS = {torch.float32: 2.0**16, torch.float64: 2.0**16, torch.float16: 2.0**10, torch.bfloat16: 2.0**7}


class Task(NamedTuple):
    """Inputs and weights of small whole numbers, and what is right on them."""

    inputs: list[Any]
    expected: Expected
    units: list[float]
    """Of each output: all its elements are multiples of it."""


class Deviation(NamedTuple):
    """How outputs differ from what is exactly right."""

    detail: str
    pattern: ErrorPattern | None


def make_task(reference: Reference) -> Task | None:
    """Find whole numbers on which the reference is exact, and give its model such weights; None if there are none.

    Without a task the model has the weights that it had.
    """
    drawn = reference.inputs(secrets.randbits(63))
    before = copy.deepcopy(reference.model.state_dict())
    generator = torch.Generator(device=reference.device).manual_seed(secrets.randbits(63))
    with contextlib.suppress(BadProblem):  # it was not made for such numbers
        for density in DENSITIES:
            inputs = with_each(drawn, functools.partial(_whole, density=density, generator=generator))
            state = {name: _whole(tensor, density, generator) for name, tensor in before.items()}
            reference.adopt(state)
            expected = reference.expected(inputs)
            if not any(_tells(each) for each in expected.exact if each is not None):
                continue  # a sum may come out as zero by chance
            units = _units(expected)
            if units is None:
                break
            is_exact = _is_exact(expected, units)
            reference.adopt({name: _magnitude(tensor) for name, tensor in state.items()})
            most = _most_units([*pack_inputs(inputs)[1], *state.values(), *expected.working])
            if is_exact and most and _peak(reference, with_each(inputs, _magnitude)) <= min(units) * most:
                reference.adopt(state)
                return Task(inputs, expected, units)
    reference.adopt(before)
    return None


def deviation(task: Task, outputs: Sequence[Tensor]) -> Deviation | None:
    """Say how outputs are off by half a unit or more; None when they are not."""
    for number, (exact, output, unit) in enumerate(zip(task.expected.exact, outputs, task.units, strict=True)):
        assert exact is not None
        counted, right = _count(output, unit), _count(exact, unit)
        wrong = counted != right
        if not bool(wrong.any()):
            continue
        index = int(wrong.flatten().int().argmax())
        at = [int(place) for place in torch.unravel_index(torch.tensor(index), exact.shape)]
        seen = f"expected {float(exact.flatten()[index]):.6g}, got {float(output.reshape(-1)[index]):.6g}"
        detail = (
            f"on small whole numbers, where every sum is exact, {int(wrong.sum())} of {wrong.numel()} elements differ"
        )
        return Deviation(f"{detail}; at {at} {seen}", find_pattern(number, right, counted, 0.0))
    return None


def _count(tensor: Tensor, unit: float) -> Tensor:
    """Count the units in each element, rounded to the nearest; what is not finite becomes more than anything can be."""
    return (tensor.double() / unit).nan_to_num(2.0**61, 2.0**60, -(2.0**60)).clamp(-(2.0**61), 2.0**61).round().long()


def _whole(tensor: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """Draw -1, 0 and 1 in the place of numbers (0 and 1 if none was negative); zeros and what is not finite stay.

    What inputs may be is kept: labels stay the few numbers that they are, grids ascend, symmetric matrices stay
    symmetric, and numbers far from zero become 1 and 2.
    The first and the last place of every dimension have `EDGE` numbers that are not zero at least, if they have as many
    elements: a tail is what is forgotten most.
    """
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1 or tensor.numel() < 2:  # noqa: PLR2004
        return tensor
    if is_few(tensor) and bool(tensor.all()):
        return tensor
    if is_in_order(tensor):
        return torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device).view(tensor.shape)
    shares = torch.full((1,) * tensor.dim(), density, device=tensor.device)
    for dimension, size in enumerate(tensor.shape):
        shares = torch.where(_is_edge(dimension, size, tensor), shares.clamp_min(EDGE * size / tensor.numel()), shares)
    kept = torch.rand(tensor.shape, generator=generator, device=tensor.device) < shares
    signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
    drawn = (signs if bool((tensor < 0).any()) else signs.abs()) * kept
    if bool(tensor.min() > _FAR * tensor.max()):
        drawn = 1 + kept.int()
    if is_symmetric(tensor):
        drawn = drawn.tril() + drawn.tril(-1).mT
    return torch.where(torch.isfinite(tensor) & (tensor != 0), drawn.to(tensor.dtype), tensor)


def _is_edge(dimension: int, size: int, tensor: Tensor) -> Tensor:
    places = torch.arange(size, device=tensor.device)
    shape = [1] * tensor.dim()
    shape[dimension] = size
    return ((places == 0) | (places == size - 1)).reshape(shape)


def _magnitude(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_floating_point() and tensor.dtype.itemsize > 1 else tensor


def _peak(reference: Reference, inputs: Sequence[Any]) -> float:
    try:
        return largest_value(reference.run, inputs)
    except Exception:  # noqa: BLE001 - whatever trusted code raises on numbers that it was not made for
        return math.inf


def _most_units(tensors: Sequence[Tensor]) -> float:
    return min((MOST_UNITS.get(tensor.dtype, 0.0) for tensor in tensors if tensor.is_floating_point()), default=0.0)


def _units(expected: Expected) -> list[float] | None:
    """Return for each output the largest power of two that it is a multiple of; None if there is none for one."""
    exact = [each for each in expected.exact if each is not None and each.is_floating_point()]
    if len(exact) < len(expected.working):
        return None
    some = [each.flatten()[:_FEW] for each in exact]  # what is no multiple of the smallest one is soon seen
    if not all(_is_multiple(each, _POWERS[-1]) for each in (*some, *exact)):
        return None
    return [next(unit for unit in _POWERS if _is_multiple(each, unit)) for each in exact]


def _is_multiple(exact: Tensor, unit: float) -> bool:
    return bool((exact / unit).frac().eq(0).all())


def _tells(exact: Tensor) -> bool:
    """Whether there is something to get wrong: not a constant, unless it is a single number."""
    if exact.numel() < 2:  # noqa: PLR2004
        return bool(exact.any())
    return bool((exact != exact.flatten()[0]).any())


def _is_exact(expected: Expected, units: Sequence[float]) -> bool:
    """Whether the reference is, in its own precision and in every class that is accepted."""
    reruns = [expected.rerun(ROUNDINGS[precision][0]) if expected.rerun else None for precision in expected.accepts]
    return all(
        run is not None and all(map(_is_near, run, expected.exact, units)) for run in (expected.working, *reruns)
    )


def _is_near(side: Tensor, exact: Tensor | None, unit: float) -> bool:
    assert exact is not None
    return bool(((side.double() - exact).abs() <= unit / 4).logical_or(side.double() == exact).all())
