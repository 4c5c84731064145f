"""Recheck: whether outputs of timed calls are as right as those of the trials, cheap enough to look at every one.

The first outputs are compared in full. How far those lie from the reference's own becomes the yardstick: a later output
that lies within `REACH` times that passes, any other is compared in full again.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from drkernel_q.evaluation import Outcome
from workers.comparison import correctness, measure
from workers.comparison.reference import Reference

#: Outputs that are compared in full before there is a yardstick.
FULL = 3
#: Largest error and relative L2 error that pass, as multiples of the yardstick: extremes scatter more than sums.
REACH = (3.0, 1.5)
#: Elements looked at at a time.
CHUNK = 2**26


class Recheck:
    """Compares outputs of the same candidate, call after call."""

    def __init__(self, reference: Reference) -> None:
        """Compare with `reference`, whose weights must stay as they are."""
        self.reference = reference
        self.count = 0
        self.faults: list[str] = []
        self._yardstick: list[tuple[float, float]] = []
        self._full = 0

    def look(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        """Compare one call's outputs with the reference's; what is wrong with them is added to `faults`."""
        self.count += 1
        distances = [_distance(*pair) for pair in zip(self.reference.outputs(inputs), outputs, strict=True)]
        if self._full >= FULL and all(map(_is_within, distances, self._yardstick)):
            return
        if not self._is_right(inputs, outputs):
            return
        self._full += 1
        known = self._yardstick or distances
        self._yardstick = [(max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(known, distances, strict=True)]

    def look_closely(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        """Do the same for inputs that are no nominal ones: in full, and for no yardstick."""
        self.count += 1
        self._is_right(inputs, outputs)

    def _is_right(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> bool:
        result = correctness.compare(self.reference.expected(inputs), outputs)
        if result.outcome is not Outcome.CORRECT:
            self.faults.append(result.detail or result.outcome.value)
        return result.outcome is Outcome.CORRECT


def _is_within(distance: tuple[float, float], yardstick: tuple[float, float]) -> bool:
    # NaN is within nothing, and nothing is within infinity: whole numbers that differ are compared in full again.
    return all(one <= reach * most < inf for one, most, reach in zip(distance, yardstick, REACH, strict=True))


def _distance(working: Tensor, output: Tensor) -> tuple[float, float]:
    """Return the largest difference relative to the row's RMS, and the relative L2 difference; infinite if unclear."""
    if working.is_complex():
        return _distance(torch.view_as_real(working), torch.view_as_real(output))
    if not working.is_floating_point():
        return (0.0, 0.0) if torch.equal(working, output) else (torch.inf, torch.inf)
    if not working.numel():
        return 0.0, 0.0
    width = working.shape[-1] if working.dim() > 1 else working.numel()
    step = max(CHUNK // width, 1)
    pieces = [
        _difference(left.float(), right.float())
        for left, right in zip(
            torch.split(working.reshape(-1, width), step), torch.split(output.reshape(-1, width), step), strict=True
        )
    ]
    largest, difference, norm = torch.stack(pieces).double().unbind(1)
    return float(largest.max()), float((difference.sum() / norm.sum()).sqrt())


def _difference(working: Tensor, output: Tensor) -> Tensor:
    """Return the largest difference relative to the row's RMS, and the sums of squares of difference and row."""
    norm = torch.linalg.vector_norm
    norms = norm(working, dim=1, keepdim=True)
    squares = norms.square() / working.shape[1]
    scale = torch.maximum(squares, measure.ROW_FLOOR**2 * squares.mean()).sqrt().clamp_min(1e-30)
    difference = output - working
    apart = norm(difference)
    largest = norm(difference.div_(scale), ord=torch.inf)
    return torch.stack([largest, apart.square(), norms.square().sum()])
