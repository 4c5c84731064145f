"""Speedup: one number and its interval from blocks of times that lay beside each other.

Works on stored times as well as on fresh ones, so that a judge and whoever looks at its results again compute the same.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

#: Times of one side, milliseconds: blocks of calls.
Blocks = Sequence[Sequence[float]]

#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
#: The same quantile of the normal distribution.
_NORMAL = 1.959964
#: Standard deviation of a call's time between fresh processes on an H200 (docs/log.md): a share, and milliseconds.
PROCESS_SPREAD, PROCESS_SPREAD_MS = 0.0015, 5e-5


class Interval(NamedTuple):
    """A speedup, and what it may be in truth (95 %)."""

    speedup: float
    low: float
    high: float


def speedup_interval(reference: Blocks, candidate: Blocks) -> Interval:
    """Return the speedup and its 95 % interval; block i of one side lay beside block i of the other.

    Each pair of blocks gives one log ratio of medians, so what both sides share (a clock that drifts) drops out. The
    interval is Student's t around the mean of these ratios: calls within a block are no independent measurements. The
    estimate is their median, which lies inside, and which blocks that something else disturbed do not move
    (docs/decisions/0007-interval.md; `benchmarks/interval_coverage.py`).

    Raises:
        ValueError: there are fewer than two blocks, or one side has more than the other.
    """
    ratios = [math.log(median(first) / median(second)) for first, second in zip(reference, candidate, strict=True)]
    if len(ratios) < 2:  # noqa: PLR2004 - one block says nothing about the next
        raise ValueError("a speedup needs two blocks at least")
    estimate, center = median(ratios), fmean(ratios)
    reach = student_t(len(ratios) - 1) * stdev(ratios) / math.sqrt(len(ratios))
    low, high = min(center - reach, estimate), max(center + reach, estimate)
    return Interval(math.exp(estimate), math.exp(low), math.exp(high))


def measured_speedup(reference: Blocks, candidate: Blocks) -> Interval:
    """Return the speedup of real calls: its interval holds what fresh processes would measure, not only these two.

    Where a process's memory lies decides about its times, and no number of calls in it averages that out: the
    reach of `speedup_interval` and the usual spread between processes add in quadrature.

    Raises:
        ValueError: as `speedup_interval`.
    """
    within = speedup_interval(reference, candidate)
    spread = math.hypot(*(PROCESS_SPREAD + PROCESS_SPREAD_MS / _typical_ms(side) for side in (reference, candidate)))
    down, up = (math.hypot(math.log(end / within.speedup), _NORMAL * spread) for end in (within.low, within.high))
    return Interval(within.speedup, within.speedup * math.exp(-down), within.speedup * math.exp(up))


def _typical_ms(side: Blocks) -> float:
    return median(time for block in side for time in block)


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t; from 11 degrees of freedom on by Hill's expansion (within 3e-4)."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
