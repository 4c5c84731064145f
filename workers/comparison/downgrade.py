"""Downgrade: whether errors beyond the reference's own tolerance are those of a less precise class of products.

The judge knows what a class does to this problem: it runs the reference with the operands of every product rounded so.
With r the candidate's error and v that of the rounded reference, both relative to the scale of their row, an output is
of that class when r is not much larger than v, lies where v lies, has no more of a bias than v, and is in good part v
itself: the same operands, rounded the same way. So a problem without products has no lower class, and neither a coarse
approximation nor missing terms, skipped parts or factors that are off can pass for one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drkernel_q.correctness import Precision
from workers.comparison.arithmetic import ROUNDINGS, Rounding, truncated
from workers.comparison.measure import Expected, chunks_of, finite, measure, rows_of

#: Relative L2 error from which on no class is tried: 100 products one after the other in bf16 are at 0.025.
HOPELESS = 0.25
#: A class must do this much more to the reference than fp32 does, as a factor on its relative L2 error.
_LEAST_LOSS = 2.0
#: How much larger r may be than v: at the maximum, at the quantile, and in L2 without a bias. Measured: 1.0 for equal
#: operands, 1.2 to 1.5 where results are stored coarsely too, 2.2 to 2.5 for fp16 sums of 256 terms, 6.2 for one
#: missing term of 4096 in bf16.
_LARGER = 3.0
#: Correlation that r must have with v, without a bias, and standard deviations of chance that it must be above.
#: Measured: 1.0 for the same operands, 0.7 to 0.8 where one of two was scaled before or the result was stored coarsely,
#: 0.5 in attention by blocks, 0.13 between bf16 and TF32, at most 0.05 for an error that is no rounding.
_ALIKE, _CERTAIN = 0.15, 3.0
#: Part of the error that may be proportional to the output, beyond what the class itself does: in parts of v, and the
#: standard deviations of chance that come on top.
_BIAS, _CHANCE = 0.25, 4.0
#: Below this many elements r must be v itself, but for this part: a correlation says nothing.
_FEW, _APART = 64, 0.5
#: Bands that rows and columns are divided into, elements a band must have, and how uneven r may lie on them against v
#: (at most 2.6 for attention with a few keys that decide).
_BANDS, _BAND_ELEMENTS, _UNEVEN = 32, 64, 4.0


class Downgrade(NamedTuple):
    """The class that explains the errors, and the largest error that it would have explained."""

    precision: Precision
    tolerance: float


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
    output, versions, ruler = outputs[number], [run[number] for run in runs], expected.rulers[number]
    assert ruler is not None
    anchor, scale, plain = ruler
    if not all(bool(torch.isfinite(version[torch.isfinite(anchor)]).all()) for version in versions):
        return None
    own = measure(anchor, output, scale)
    rounded = [measure(anchor, version, scale) for version in versions]
    if rounded[0].relative_l2 < _LEAST_LOSS * plain.relative_l2:
        return None
    tolerance = _LARGER * max(errors.maximum for errors in rounded)
    if own.maximum > tolerance or own.quantile > _LARGER * max(errors.quantile for errors in rounded):
        return None
    ways = dict(zip(ROUNDINGS[precision], versions, strict=True))
    weight = scale.clamp_min(float(scale.square().mean().sqrt()))  # or a few small rows would decide
    return tolerance if _is_rounding(anchor, output, ways, weight) else None


def _is_rounding(anchor: Tensor, output: Tensor, ways: Mapping[Rounding, Tensor], scale: Tensor) -> bool:
    """Whether the error of `output` is that of one of the `ways` to round, or lies between them.

    Truncation has a bias, which is a smooth function of what it biases, as the error of a coarse approximation is; so
    it is allowed for and proves nothing.
    """
    count = anchor.numel()
    fair = [version for rounding, version in ways.items() if rounding is not truncated]
    if count < _FEW:
        return any(_apart(anchor, output, version, scale) <= _APART for version in ways.values())
    biases = [ways[truncated] - fair[-1]] if truncated in ways else []
    slopes = [_slope(anchor, version, scale) for version in ways.values()]
    alike = max(_ALIKE, _CERTAIN / math.sqrt(count))
    for version in fair:
        found = overlay(anchor, output, version, biases, scale)
        slack = found.noise * (_BIAS + _CHANCE / math.sqrt(count))
        straight = min(slopes) - slack <= _slope(anchor, output, scale) <= max(slopes) + slack
        if found.alike >= alike and found.larger <= _LARGER and straight:
            return min(unevenness(anchor, output, other, scale) for other in ways.values()) <= _UNEVEN
    return False


def _slope(anchor: Tensor, output: Tensor, scale: Tensor) -> float:
    """Return the part of an output's error that is proportional to what is right."""
    along = total = 0.0
    rows = rows_of(output)
    for start, part in chunks_of(rows_of(anchor)):
        here = slice(start, start + len(part))
        y = finite(part) / scale[here]
        along += float((finite(rows[here]) / scale[here] * y).sum())
        total += float(y.square().sum())
    return along / max(total, 1e-300) - 1.0


def _apart(anchor: Tensor, output: Tensor, version: Tensor, scale: Tensor) -> float:
    """Return the size of r - v against that of v."""
    difference, v = ((finite(side) - finite(other)) for side, other in ((output, version), (version, anchor)))
    return float((rows_of(difference) / scale).norm() / (rows_of(v) / scale).norm().clamp_min(1e-300))


class Overlay(NamedTuple):
    """One error laid over another, both without what is proportional to the output or to a known bias."""

    alike: float
    """Correlation of r with v."""
    larger: float
    """Size of r against that of v."""
    noise: float
    """Size of v against that of the output."""


def overlay(anchor: Tensor, output: Tensor, version: Tensor, biases: Sequence[Tensor], scale: Tensor) -> Overlay:
    """Lay the error of `output` over that of `version`; `biases` are directions that an error may have a part in.

    y, the biases, r and v are signals, and their inner products say all.
    """
    sides = [*biases, output, version]
    products = torch.zeros(len(sides) + 1, len(sides) + 1, dtype=torch.float64, device=anchor.device)
    parts = [rows_of(side) for side in sides]
    for start, part in chunks_of(rows_of(anchor)):
        here = slice(start, start + len(part))
        y = finite(part) / scale[here]
        errors = [finite(side[here]) / scale[here] for side in parts]
        errors[len(biases) :] = [side - y for side in errors[len(biases) :]]
        signals = torch.stack([y, *errors]).flatten(1)
        products += signals @ signals.mT
    products = products.cpu()
    sizes = products.diagonal().sqrt().clamp_min(1e-300)
    return _fit(products / sizes.outer(sizes), sizes)


def _fit(products: Tensor, sizes: Tensor) -> Overlay:
    """Take what is proportional to the first signals out of the last two, r and v; all are given with size 1."""
    known = len(products) - 2
    inverse = torch.linalg.pinv(products[:known, :known], rtol=1e-9, hermitian=True)
    rest = products[known:, known:] - products[known:, :known] @ inverse @ products[:known, known:]
    r, v = (float(rest[side, side].clamp_min(0).sqrt()) for side in (0, 1))
    y_size, r_size, v_size = float(sizes[0]), float(sizes[known]), float(sizes[known + 1])
    return Overlay(
        alike=float(rest[0, 1]) / (r * v) if r and v else 0.0,
        larger=r * r_size / max(v * v_size, 1e-300),
        noise=v * v_size / y_size,
    )


def unevenness(anchor: Tensor, output: Tensor, version: Tensor, scale: Tensor) -> float:
    """Return the largest ratio of r to v over bands of rows and of columns, by their ratio over all."""
    rows = [rows_of(side) for side in (output, version)]
    by_row: list[Tensor] = []
    by_column = torch.zeros(2, rows[0].shape[1], dtype=torch.float64, device=anchor.device)
    for start, part in chunks_of(rows_of(anchor)):
        here = slice(start, start + len(part))
        squares = torch.stack([(finite(side[here]) - finite(part)) / scale[here] for side in rows]).square_()
        by_row.append(squares.sum(dim=2))
        by_column += squares.sum(dim=1)
    return max(_most_uneven(squares, anchor.numel()) for squares in (torch.cat(by_row, dim=1), by_column))


def _most_uneven(squares: Tensor, elements: int) -> float:
    """Return the same for sums of squares of r and v, of shape (2, n)."""
    count = max(min(_BANDS, squares.shape[1], elements // _BAND_ELEMENTS), 1)
    bands = torch.stack([band.sum(dim=1) for band in squares.tensor_split(count, dim=1)])
    whole = squares.sum(dim=1)
    if not bool(whole.all()):
        return 0.0
    shares = bands / whole * count
    return float((shares[:, 0] / (shares[:, 1] + 0.01)).max().sqrt())
