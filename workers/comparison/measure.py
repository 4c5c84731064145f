"""Measure: errors against fp64, by the scale of each row, a chunk of rows at a time on the device.

With y64 the reference in fp64, an error is |y - y64| / s, where s is the RMS of the row (last dimension), at least
`ROW_FLOOR` of the whole tensor's.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drkernel_q.correctness import Precision
from workers.comparison.arithmetic import ROUNDINGS, Rounding

QUANTILE = 0.999
ROW_FLOOR = 0.05
#: Elements measured at a time, and elements that a quantile is taken over (a random sample beyond that).
CHUNK = 2**25
SAMPLE = 2**21
#: Ratio of errors that cannot be overlooked.
_FAR = 8.0


class Errors(NamedTuple):
    """Error of one output: of one side against fp64."""

    quantile: float
    maximum: float
    relative_l2: float
    worst: int
    """Flat index of the largest error."""


class Ruler(NamedTuple):
    """What errors of one output are measured with."""

    anchor: Tensor
    """What is right (`anchor_of`)."""
    scale: Tensor
    """Of each row, shape (rows, 1)."""
    own: Errors
    """The reference's own errors."""


@dataclass(frozen=True)
class Expected:
    """What the reference gave for one trial."""

    skeleton: Any
    working: list[Tensor]
    """Outputs in the reference's own precision."""
    exact: list[Tensor | None]
    """Outputs of the same computation in fp64; None for integers and booleans, and where fp64 could not be run."""
    reduction: int
    """Longest dimension of inputs and parameters, as far as several elements of theirs may meet in one of the output's:
    a bound on the length of a reduction."""
    rerun: Callable[[Rounding], list[Tensor] | None] | None = None
    """Runs the reference once more with the operands of its products rounded; None where that cannot be done."""
    accepts: tuple[Precision, ...] = ()
    """Less precise classes whose errors are taken for right, the most precise first."""
    nearby: Callable[[], Iterator[list[Tensor]]] | None = None
    """Runs the reference on inputs a few roundings away, anew for each that is asked for; None where nobody can."""

    @functools.cached_property
    def rulers(self) -> list[Ruler | None]:
        """Rulers of all outputs, complex ones as pairs of real numbers; none of outputs that are counted or empty."""
        return list(map(_ruler_of, self.working, self.exact))

    def is_anchored(self, number: int) -> bool:
        """Whether fp64 says of this output, of real numbers, what is right."""
        is_real = self.working[number].is_floating_point() and self.working[number].numel() > 0
        return is_real and self.exact[number] is not None


def outline(expected: Expected) -> Expected:
    """Keep the structure, shapes and dtypes of what is expected, without the memory of its values."""
    shapes = [torch.empty_like(tensor, device="meta") for tensor in expected.working]
    return replace(expected, working=shapes, exact=[None] * len(shapes), rerun=None, accepts=(), nearby=None)


def comparable(tensor: Tensor) -> Tensor:
    """Widen fp8, in which torch computes nothing; complex numbers become pairs of real ones."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _ruler_of(working: Tensor, exact: Tensor | None) -> Ruler | None:
    if not (working.is_floating_point() or working.is_complex()) or not working.numel():
        return None
    working, exact = comparable(working), None if exact is None else comparable(exact)
    anchor = anchor_of(working, exact)
    scale = row_scale(anchor)
    return Ruler(anchor, scale, measure(anchor, working, scale))


def anchor_of(working: Tensor, exact: Tensor | None) -> Tensor:
    """Return fp64, but the reference's own value where one of them overflows: that is no measure of its rounding."""
    if exact is None or (surely_finite(working) and surely_finite(exact)):
        return working if exact is None else exact
    both = torch.isfinite(working) & torch.isfinite(exact)
    return exact if bool(both.all()) else torch.where(both, exact, working.to(exact.dtype))


def surely_finite(tensor: Tensor) -> bool:
    """Whether every number is finite, by one pass over memory; very large ones may be taken for infinite."""
    return bool(torch.linalg.vector_norm(tensor).isfinite())


def row_scale(anchor: Tensor) -> Tensor:
    """Return s for every row, as fp64 of shape (rows, 1)."""
    rows = rows_of(anchor)
    norms = torch.cat([_row_norms(part) for _, part in chunks_of(rows)])
    squares = norms.square() / rows.shape[1]
    whole = squares.mean().sqrt()
    return squares.sqrt().clamp_min(max(float(whole) * ROW_FLOOR, 1e-30)).unsqueeze(1)


def _row_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    if not bool(norms.isfinite().all()):
        norms = torch.linalg.vector_norm(finite(rows), dim=1)
    return norms


def measure(anchor: Tensor, other: Tensor, scale: Tensor) -> Errors:
    """Measure |other - anchor| / scale and the relative L2 error, in fp64, a chunk of rows at a time."""
    anchor_rows, other_rows = rows_of(anchor), rows_of(comparable(other))
    difference = norm = maximum = 0.0
    worst = 0
    kept: list[Tensor] = []
    share = min(1.0, SAMPLE / max(anchor.numel(), 1))
    for start, part in chunks_of(anchor_rows):
        here = slice(start, start + len(part))
        flat, squares, exact_squares, largest, top = _errors(part.double(), other_rows[here], scale[here])
        difference += squares
        norm += exact_squares
        if largest > maximum:
            maximum, worst = largest, start * anchor_rows.shape[1] + top
        picks = max(int(len(flat) * share), 1)
        kept.append(flat if share >= 1.0 else flat[torch.randint(len(flat), (picks,), device=flat.device)])
    sample = torch.cat(kept)
    above = len(sample) - math.ceil(QUANTILE * len(sample))
    quantile = float(sample.topk(above + 1, sorted=False).values.min())  # kthvalue keeps one multiprocessor busy
    return Errors(quantile, maximum, math.sqrt(difference / norm) if norm > 0 else float(difference > 0), worst)


def _errors(exact: Tensor, other: Tensor, scale: Tensor) -> tuple[Tensor, float, float, float, int]:
    """Return the errors of a piece by its scale, sums of squares of error and `exact`, and largest with its place.

    Each is a pass over memory and no more, and all are waited for together.
    """
    error = other - exact
    norms = [torch.linalg.vector_norm(each) for each in (error, exact)]
    flat = error.div_(scale).abs_().flatten()
    largest, top = flat.max(dim=0)
    found = torch.stack([*norms, largest, top.double()]).tolist()
    if not all(map(math.isfinite, found)):
        wide = other.double()
        clean, clean_exact = finite(wide), finite(exact)
        if not (torch.equal(clean, wide) and torch.equal(clean_exact, exact)):  # and no overflow of finite ones
            return _errors(clean_exact, clean, scale)
    return flat, found[0] ** 2, found[1] ** 2, found[2], int(found[3])


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
    for number, sides in enumerate(zip(*(run or [] for run in runs), strict=True)):
        if expected.is_anchored(number):
            less, more = (_errors_of(expected, number, side).relative_l2 for side in sides)
            if more > _FAR * less:
                return True
    return False


def _as_exact(outputs: list[Tensor], expected: Expected, usual_outputs: list[Tensor], usual: Expected) -> bool:
    for number, (output, usual_output) in enumerate(zip(outputs, usual_outputs, strict=True)):
        if not (expected.is_anchored(number) and usual.is_anchored(number)):
            continue
        if _is_finite(usual_output) and not _is_finite(output):
            return False
        here, usually = _errors_of(expected, number, output), _errors_of(usual, number, usual_output)
        if here.quantile > 4 * usually.quantile or here.maximum > 4 * usually.maximum:
            return False
    return True


def _errors_of(expected: Expected, number: int, output: Tensor) -> Errors:
    """Measure one output of the reference's, or of a rounded run of it."""
    ruler = expected.rulers[number]
    assert ruler is not None
    return ruler.own if output is expected.working[number] else measure(ruler.anchor, output, ruler.scale)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(comparable(tensor)).all())


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
