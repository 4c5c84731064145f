"""Downgrade: whether errors beyond the reference's own tolerance are those of a less precise class of products.

The judge knows what a class does to this problem: it runs the reference with the operands of every product rounded so.
With r the candidate's error and v that of the rounded reference, both relative to the scale of their row, an output is
of that class when r is not much larger than v, lies where v lies, is proportional to the output no more than v is, and
has a good part in common with v: the same operands, rounded the same way. So a problem without products has no lower
class, and neither a coarse approximation nor missing terms, skipped parts or factors that are off can pass for one.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drkernel_q.correctness import Precision
from workers.arithmetic import ROUNDINGS, truncated
from workers.measure import Expected, anchor_of, chunks_of, finite, measure, row_scale, rows_of

#: Relative L2 error from which on no class is tried: 100 products one after the other in bf16 are at 0.025.
HOPELESS = 0.25
#: A class must do this much more to the reference than fp32 does, as a factor on its relative L2 error.
_LEAST_LOSS = 2.0
#: How much larger r may be than v, in L2, quantile and maximum. Measured: 1.0 for the same operands, 1.2 to 1.5 where
#: results are stored coarsely too, 2.2 to 2.5 for fp16 sums of 256 terms, 6.2 for one missing term of 4096 in bf16.
_LARGER = 3.0
#: Correlation that r must have with v, and standard deviations of chance that it must be above. Measured: 1.0 for the
#: same operands, 0.7 to 0.8 where one of two was scaled before or the result was stored coarsely, 0.5 in attention by
#: blocks, 0.0 for an error that is no rounding.
_ALIKE, _CERTAIN = 0.15, 3.0
#: Part of the error that may be proportional to the output, beyond what the class itself does, relative to v.
_BIAS = 0.25
#: Below this many elements r must be v itself, but for this part: a correlation says nothing.
_FEW, _APART = 64, 0.5
#: Bands that rows and columns are divided into, elements a band must have, and how uneven r may lie on them against v
#: (at most 2.6 for attention with a few keys that decide).
_BANDS, _BAND_ELEMENTS, _UNEVEN = 32, 64, 4.0


class Downgrade(NamedTuple):
    """The class that explains the errors, and the largest error that it would have explained."""

    precision: Precision
    tolerance: float


class Overlay(NamedTuple):
    """Inner products over one output, in units of the rows' scale: y of the exact output, r and v of the errors."""

    yy: float
    rr: float
    vv: float
    rv: float
    ry: float
    vy: float
    uneven: float
    """Largest ratio of r to v over bands of rows and of columns, divided by their ratio over all."""

    @property
    def r_slope(self) -> float:
        """The part of r that is proportional to the output."""
        return self.ry / max(self.yy, 1e-300)

    @property
    def v_slope(self) -> float:
        """The part of v that is proportional to the output."""
        return self.vy / max(self.yy, 1e-300)

    @property
    def apart(self) -> float:
        """Size of r - v against that of v."""
        return math.sqrt(max(self.rr - 2 * self.rv + self.vv, 0.0) / max(self.vv, 1e-300))

    @property
    def larger(self) -> float:
        """Size of r against that of v, without what is proportional to the output."""
        return math.sqrt(self._rest(self.rr, self.ry, self.ry) / max(self._rest(self.vv, self.vy, self.vy), 1e-300))

    @property
    def alike(self) -> float:
        """Correlation of r with v, without what is proportional to the output."""
        both = self._rest(self.rr, self.ry, self.ry) * self._rest(self.vv, self.vy, self.vy)
        return (self.rv - self.ry * self.v_slope) / math.sqrt(both) if both > 0 else 0.0

    def _rest(self, product: float, left: float, right: float) -> float:
        return max(product - left * right / max(self.yy, 1e-300), 0.0)


def explain(expected: Expected, outputs: Sequence[Tensor], wrong: Sequence[int]) -> Downgrade | None:
    """Find the most precise accepted class that explains the outputs numbered in `wrong`, all of them in fp32.

    An output may be of a more precise class than another one.
    """
    bounds: dict[int, float] = {}
    for precision in expected.accepts:
        runs = [expected.rerun(rounding) for rounding in ROUNDINGS[precision]] if expected.rerun else [None]
        versions = [run for run in runs if run is not None]
        if len(versions) < len(runs):
            continue
        for number in set(wrong) - bounds.keys():
            bound = _bound(expected, outputs, versions, number, precision)
            bounds |= {} if bound is None else {number: bound}
        if len(bounds) == len(wrong):
            return Downgrade(precision, max(bounds.values()))
    return None


def _bound(
    expected: Expected, outputs: Sequence[Tensor], runs: Sequence[Sequence[Tensor]], number: int, precision: Precision
) -> float | None:
    """Return the largest error that is allowed to an output which one of the rounded runs explains."""
    working, output, versions = expected.working[number], outputs[number], [run[number] for run in runs]
    anchor = anchor_of(working, expected.exact[number])
    if not all(bool(torch.isfinite(version[torch.isfinite(anchor)]).all()) for version in versions):
        return None
    scale = row_scale(anchor)
    plain, own = measure(anchor, working, scale), measure(anchor, output, scale)
    rounded = [measure(anchor, version, scale) for version in versions]
    if rounded[0].relative_l2 < _LEAST_LOSS * plain.relative_l2:
        return None
    tolerance = _LARGER * max(errors.maximum for errors in rounded)
    if own.maximum > tolerance or own.quantile > _LARGER * max(errors.quantile for errors in rounded):
        return None
    overlays = [overlay(anchor, output, version, scale) for version in versions]
    fair = [over for over, rounding in zip(overlays, ROUNDINGS[precision], strict=True) if rounding is not truncated]
    return tolerance if _is_rounding(overlays, fair, anchor.numel()) else None


def _is_rounding(overlays: Sequence[Overlay], fair: Sequence[Overlay], count: int) -> bool:
    """Whether r is that of one of the ways to round, or lies between them.

    Only errors without a bias (`fair`) prove anything: a bias is a smooth function of what it biases, and so is the
    error of a coarse approximation.
    """
    if count < _FEW:
        return any(over.apart <= _APART for over in overlays)
    slopes = [over.v_slope for over in overlays]
    alike = max(_ALIKE, _CERTAIN / math.sqrt(count))
    slack = math.sqrt(overlays[0].vv / max(overlays[0].yy, 1e-300)) * (_BIAS + 4 / math.sqrt(count))
    return (
        min(slopes) - slack <= overlays[0].r_slope <= max(slopes) + slack
        and any(over.alike >= alike for over in fair)
        and any(over.larger <= _LARGER and over.uneven <= _UNEVEN for over in overlays)
    )


def overlay(anchor: Tensor, output: Tensor, version: Tensor, scale: Tensor) -> Overlay:
    """Lay the errors of `output` over those of `version`, a chunk of rows at a time."""
    exact_rows, output_rows, version_rows = rows_of(anchor), rows_of(output), rows_of(version)
    sums = torch.zeros(4, dtype=torch.float64, device=anchor.device)
    by_row: list[Tensor] = []
    by_column = torch.zeros(2, exact_rows.shape[1], dtype=torch.float64, device=anchor.device)
    for start, part in chunks_of(exact_rows):
        here = slice(start, start + len(part))
        y = finite(part) / scale[here]
        r, v = (finite(rows[here]) / scale[here] - y for rows in (output_rows, version_rows))
        sums += torch.stack([(y * y).sum(), (r * v).sum(), (r * y).sum(), (v * y).sum()])
        squares = torch.stack([r, v]).square_()
        by_row.append(squares.sum(dim=2))
        by_column += squares.sum(dim=1)
    rows = torch.cat(by_row, dim=1)
    rr, vv = (float(total) for total in rows.sum(dim=1))
    yy, rv, ry, vy = (float(total) for total in sums)
    uneven = max(_unevenness(rows, anchor.numel()), _unevenness(by_column, anchor.numel()))
    return Overlay(yy, rr, vv, rv, ry, vy, uneven)


def _unevenness(squares: Tensor, elements: int) -> float:
    """Return the largest ratio of r to v over bands, by their ratio over all; `squares` are of shape (2, n)."""
    count = max(min(_BANDS, squares.shape[1], elements // _BAND_ELEMENTS), 1)
    bands = torch.stack([band.sum(dim=1) for band in squares.tensor_split(count, dim=1)])
    whole = squares.sum(dim=1)
    if not bool(whole.all()):
        return 0.0
    shares = bands / whole * count
    return float((shares[:, 0] / (shares[:, 1] + 0.01)).max().sqrt())
