"""Measure: errors against fp64, by the scale of each row, a chunk of rows at a time on the device.

With y64 the reference in fp64, an error is |y - y64| / s, where s is the RMS of the row (last dimension), at least
`ROW_FLOOR` of the whole tensor's.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drkernel_q.correctness import Precision
from workers.arithmetic import ROUNDINGS, Rounding

QUANTILE = 0.999
ROW_FLOOR = 0.05
#: Elements measured at a time, and elements that a quantile is taken over (a random sample beyond that).
CHUNK = 2**25
SAMPLE = 2**21
#: Ratio of errors that cannot be overlooked.
_FAR = 8.0


class Expected(NamedTuple):
    """What the reference gave for one trial."""

    skeleton: Any
    working: list[Tensor]
    """Outputs in the reference's own precision."""
    exact: list[Tensor | None]
    """Outputs of the same computation in fp64; None for integers and booleans, and where fp64 could not be run."""
    reduction: int
    """Longest dimension of inputs and parameters: a bound on the length of a reduction."""
    rerun: Callable[[Rounding], list[Tensor] | None] | None = None
    """Runs the reference once more with the operands of its products rounded; None where that cannot be done."""
    accepts: tuple[Precision, ...] = ()
    """Less precise classes whose errors are taken for right, the most precise first."""


def outline(expected: Expected) -> Expected:
    """Keep the structure, shapes and dtypes of what is expected, without the memory of its values."""
    shapes = [torch.empty_like(tensor, device="meta") for tensor in expected.working]
    return expected._replace(working=shapes, exact=[None] * len(shapes), rerun=None, accepts=())


class Errors(NamedTuple):
    """Error of one output: of one side against fp64."""

    quantile: float
    maximum: float
    relative_l2: float
    worst: int
    """Flat index of the largest error."""


def anchor_of(working: Tensor, exact: Tensor | None) -> Tensor:
    """Return fp64, but the reference's own value where one of them overflows: that is no measure of its rounding."""
    if exact is None:
        return working
    both = torch.isfinite(working) & torch.isfinite(exact)
    return exact if bool(both.all()) else torch.where(both, exact, working.to(exact.dtype))


def row_scale(anchor: Tensor) -> Tensor:
    """Return s for every row, as fp64 of shape (rows, 1)."""
    rows = rows_of(anchor)
    squares = torch.cat([finite(part).square().mean(dim=1) for _, part in chunks_of(rows)])
    whole = squares.mean().sqrt()
    return squares.sqrt().clamp_min(max(float(whole) * ROW_FLOOR, 1e-30)).unsqueeze(1)


def measure(anchor: Tensor, other: Tensor, scale: Tensor) -> Errors:
    """Measure |other - anchor| / scale and the relative L2 error, in fp64, a chunk of rows at a time."""
    anchor_rows, other_rows = rows_of(anchor), rows_of(other)
    difference = norm = maximum = 0.0
    worst = 0
    kept: list[Tensor] = []
    share = min(1.0, SAMPLE / max(anchor.numel(), 1))
    for start, part in chunks_of(anchor_rows):
        exact = finite(part)
        error = (finite(other_rows[start : start + len(part)]) - exact).abs_()
        difference += float(error.square().sum())
        norm += float(exact.square().sum())
        error /= scale[start : start + len(part)]
        flat = error.flatten()
        top = int(flat.argmax())
        if float(flat[top]) > maximum:
            maximum, worst = float(flat[top]), start * anchor_rows.shape[1] + top
        picks = max(int(len(flat) * share), 1)
        kept.append(flat if share >= 1.0 else flat[torch.randint(len(flat), (picks,), device=flat.device)])
    sample = torch.cat(kept)
    above = len(sample) - math.ceil(QUANTILE * len(sample))
    quantile = float(sample.topk(above + 1, sorted=False).values.min())  # kthvalue keeps one multiprocessor busy
    return Errors(quantile, maximum, math.sqrt(difference / norm) if norm > 0 else float(difference > 0), worst)


def is_as_exact(expected: Expected, usual: Expected) -> bool:
    """Whether the reference is finite and about as exact here as it usually is, in every class that is accepted too."""
    if not _as_exact(expected.working, expected, usual.working, usual):
        return False
    for rounding in (ROUNDINGS[precision][0] for precision in expected.accepts):
        here, usually = (side.rerun(rounding) if side.rerun else None for side in (expected, usual))
        if here is None or usually is None or not _as_exact(here, expected, usually, usual):
            return False
    return True


def can_tell(expected: Expected, fine: Precision, coarse: Precision) -> bool:
    """Whether errors of the two classes would differ by far on these inputs, in some output."""
    runs = [expected.rerun(ROUNDINGS[each][0]) if expected.rerun else None for each in (fine, coarse)]
    if None in runs:
        return False
    for exact, *sides in zip(expected.exact, *(run or [] for run in runs), strict=True):
        if exact is not None and exact.is_floating_point():
            less, more = (measure(exact, side, row_scale(exact)).relative_l2 for side in sides)
            if more > _FAR * less:
                return True
    return False


def _as_exact(outputs: list[Tensor], expected: Expected, usual_outputs: list[Tensor], usual: Expected) -> bool:
    for output, exact, usual_output, usual_exact in zip(
        outputs, expected.exact, usual_outputs, usual.exact, strict=True
    ):
        if not (output.is_floating_point() and output.numel()) or exact is None or usual_exact is None:
            continue
        if _is_finite(usual_output) and not _is_finite(output):
            return False
        here = measure(exact, output, row_scale(exact))
        usually = measure(usual_exact, usual_output, row_scale(usual_exact))
        if here.quantile > 4 * usually.quantile or here.maximum > 4 * usually.maximum:
            return False
    return True


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor).all())


def rows_of(tensor: Tensor) -> Tensor:
    """View a tensor as rows along its last dimension; a vector is one row."""
    width = tensor.shape[-1] if tensor.dim() > 1 else max(tensor.numel(), 1)
    return tensor.detach().reshape(-1, max(width, 1))


def chunks_of(rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Give rows in pieces of about `CHUNK` elements, each with the number of its first row."""
    step = max(CHUNK // rows.shape[1], 1)
    for start in range(0, len(rows), step):
        yield start, rows[start : start + step]


def finite(tensor: Tensor) -> Tensor:
    """Widen to fp64, with zero for what is not finite: that is compared elsewhere."""
    return torch.nan_to_num(tensor.double(), nan=0.0, posinf=0.0, neginf=0.0)
