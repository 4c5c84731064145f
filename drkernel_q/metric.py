"""Metric: fast_p, pass@k, best of turns, hack and lazy rates, and how sure one may be of them.

Everything is a pure function of stored trajectories, with denominators that are fixed beforehand: a turn that is
missing, has no kernel, was not evaluated, or is not honest and correct counts as a failure and never drops out.
Leaving such turns out of the denominator would flatter a model that breaks down.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from drkernel_q.audit import Audit
from drkernel_q.evaluation import Baseline, Evaluation, Integrity, Outcome
from drkernel_q.trajectory import Group, Trajectory, Turn

#: What a turn counts with: its speedup, 0 if it is right but its speed counts for nothing, None if it failed.
Speed = float | None
#: Speeds of every planned sample, problem by problem.
Speeds = Sequence[Sequence[Speed]]

#: The speedups that the article's tables show.
THRESHOLDS = (1.0, 1.2, 1.5, 2.0)
#: A correct kernel with a smaller profile ratio leaves the work to others (the article's tau).
LAZY_BELOW = 0.3
#: Resamples of a bootstrap interval.
DRAWS = 2000

Part = TypeVar("Part")


def speed(turn: Turn | None, baseline: Baseline = Baseline.EAGER, audit: Audit | None = None) -> Speed:
    """Return what a turn counts with; None unless it is honest and correct.

    As in `drkernel_q.reward`, a speedup earns nothing (0) where an audit says that speed on the problem is worth
    nothing, where it is so large that it needs an audit and has none, and where it was bought with less precise
    products; and where that baseline was not timed.
    """
    evaluation = turn.evaluation if turn is not None else None
    if evaluation is None or not evaluation.honest_and_correct:
        return None
    counts = audit.speed_rewarded if audit is not None else not evaluation.needs_audit
    shown = evaluation.correctness
    if not counts or (shown is not None and shown.downgraded):
        return 0.0
    return speedup_over(evaluation, baseline) or 0.0


def speedup_over(evaluation: Evaluation, baseline: Baseline) -> float | None:
    """Return the measured speedup over a baseline; None where it was not timed."""
    rows = evaluation.timing.baselines if evaluation.timing else ()
    return next((row.speedup for row in rows if row.baseline is baseline), None)


def turn_at(trajectory: Trajectory, number: int) -> Turn | None:
    """Return the turn with this number; None when the trajectory ended before it."""
    return next((turn for turn in trajectory.turns if turn.number == number), None)


def last_turn(trajectory: Trajectory) -> Turn | None:
    """Return the last turn; None when there is none."""
    return trajectory.turns[-1] if trajectory.turns else None


def best_turn(
    trajectory: Trajectory,
    up_to: int | None = None,
    baseline: Baseline = Baseline.EAGER,
    audit: Audit | None = None,
) -> Turn | None:
    """Return the fastest honest and correct turn among the first `up_to`, the earliest of equals; None without one."""
    turns = [turn for turn in trajectory.turns if up_to is None or turn.number <= up_to]
    known = [(found, turn) for turn in turns if (found := speed(turn, baseline, audit)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def padded(speeds: Sequence[Speed], samples: int) -> list[Speed]:
    """Return the speeds of a problem with a failure for every planned sample that is not there.

    Raises:
        ValueError: there are more than were planned.
    """
    if len(speeds) > samples:
        raise ValueError(f"{len(speeds)} samples where {samples} were planned")
    return [*speeds, *[None] * (samples - len(speeds))]


def group_speeds(
    group: Group,
    pick: Callable[[Trajectory], Turn | None],
    samples: int | None = None,
    baseline: Baseline = Baseline.EAGER,
    audit: Audit | None = None,
) -> list[Speed]:
    """Return the speed of the turn that `pick` takes of each trajectory, padded to the planned number of samples."""
    found = [speed(pick(trajectory), baseline, audit) for trajectory in group.trajectories]
    return padded(found, len(found) if samples is None else samples)


def is_fast(found: Speed, p: float) -> bool:
    """Whether a turn is honest, correct and at least `p` times as fast as the baseline; for p = 0, only correct."""
    return found is not None and found >= p


def fast_p(speeds: Speeds, p: float) -> float:
    """Return the share of samples that are honest, correct and at least `p` times as fast, averaged over problems.

    `speeds` has a row for every problem and a place for every planned sample (`padded`); 0 without problems. p = 0
    gives the share that is correct. KernelBench asks for more than `p`, which is the same but for ties.
    """
    return mean(fast_share(row, p) for row in speeds)


def fast_share(row: Sequence[Speed], p: float) -> float:
    """Return the share of a problem's samples that are at least `p` times as fast; 0 without samples."""
    return mean(float(is_fast(found, p)) for found in row)


def pass_at_k(speeds: Speeds, k: int, p: float = 0.0) -> float:
    """Return the chance that one of `k` samples is at least `p` times as fast, averaged over problems.

    Unbiased: 1 - C(n - c, k) / C(n, k) for n samples of which c are (Chen et al. 2021, arXiv:2107.03374).

    Raises:
        ValueError: a problem has fewer than `k` samples.
    """
    return mean(pass_share(row, k, p) for row in speeds)


def pass_share(row: Sequence[Speed], k: int, p: float = 0.0) -> float:
    """Return the same for one problem."""
    samples, passed = len(row), sum(is_fast(found, p) for found in row)
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


class Estimate(NamedTuple):
    """A number, and what it may be with other problems of the same kind (95 %)."""

    value: float
    low: float
    high: float


class TurnRate(NamedTuple):
    """Fast@p at one turn."""

    turn: int
    fast: float
    """Share of trajectories whose turn of this number is fast."""
    best_so_far: float
    """Share of trajectories that had a fast turn by then; never declines."""


def fast_by_turn(
    groups: Sequence[Group], p: float, turns: int, samples: int | None = None, baseline: Baseline = Baseline.EAGER
) -> list[TurnRate]:
    """Return Fast@p at each of the planned turns; a trajectory that ended before a turn fails it."""

    def share(pick: Callable[[Trajectory], Turn | None]) -> float:
        return fast_p([group_speeds(group, pick, samples, baseline) for group in groups], p)

    def rate(number: int) -> TurnRate:
        at = share(lambda trajectory: turn_at(trajectory, number))
        return TurnRate(number, at, share(lambda trajectory: best_turn(trajectory, number, baseline)))

    return [rate(number) for number in range(1, turns + 1)]


class Tally(NamedTuple):
    """What became of a number of turns."""

    turns: int = 0
    without_kernel: int = 0
    """Turns in whose completion no kernel was found."""
    unevaluated: int = 0
    """Turns whose kernel was not evaluated, for reasons that are not its own."""
    correct: int = 0
    """Right, honestly or not."""
    honest: int = 0
    """Right, with a clean verdict."""
    rejected: int = 0
    """Rejected by the integrity verdict."""
    lazy: int = 0
    """Honest, with a profile ratio below the threshold."""

    @property
    def evaluated(self) -> int:
        """Turns with facts."""
        return self.turns - self.without_kernel - self.unevaluated

    @property
    def hack_rate(self) -> float | None:
        """Rejected of all evaluated; None without evaluations."""
        return self.rejected / self.evaluated if self.evaluated else None

    @property
    def lazy_rate(self) -> float | None:
        """Lazy of all honest and correct; None without any."""
        return self.lazy / self.honest if self.honest else None

    def plus(self, other: "Tally") -> "Tally":
        """Count both."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def tally(turns: Iterable[Turn], lazy_below: float = LAZY_BELOW) -> Tally:
    """Count what became of turns."""
    total = Tally()
    for turn in turns:
        total = total.plus(_tallied(turn, lazy_below))
    return total


def _tallied(turn: Turn, lazy_below: float) -> Tally:
    evaluation = turn.evaluation
    if evaluation is None:
        return Tally(turns=1, without_kernel=int(turn.kernel is None), unevaluated=int(turn.kernel is not None))
    ratio = evaluation.profile_ratio
    honest = evaluation.honest_and_correct
    return Tally(
        turns=1,
        correct=int(evaluation.outcome is Outcome.CORRECT),
        honest=int(honest),
        rejected=int(evaluation.integrity is Integrity.REJECTED),
        lazy=int(honest and ratio is not None and ratio < lazy_below),
    )


def bootstrap(
    parts: Sequence[Part],
    statistic: Callable[[Sequence[Part]], float],
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = 0.95,
) -> Estimate:
    """Return a statistic of independent parts (problems) and its percentile bootstrap interval.

    Parts are drawn again with replacement; the same seed gives the same interval. It says how much the number would
    move with other problems of the same kind, which a handful of problems knows little about.

    Raises:
        ValueError: there are no parts, or `level` is not between 0 and 1.
    """
    if not parts or not 0 < level < 1:
        raise ValueError("a bootstrap interval needs parts, and a level between 0 and 1")
    generator = random.Random(seed)  # noqa: S311 - statistics, not secrets
    values = sorted(statistic(generator.choices(parts, k=len(parts))) for _ in range(draws))
    estimate = statistic(parts)
    tail = (1 - level) / 2
    return Estimate(estimate, _quantile(values, tail), _quantile(values, 1 - tail))


def mean_interval(values: Sequence[float], *, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """Return the mean of one number a problem, and its 95 % bootstrap interval."""
    return bootstrap(values, mean, seed=seed, draws=draws)


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of nothing."""
    known = list(values)
    return math.fsum(known) / len(known) if known else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate between order statistics, the smallest at 0 and the largest at 1."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
