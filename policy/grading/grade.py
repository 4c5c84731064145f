"""Grade: what a suite of problems says of a model or of a set of kernels, with intervals.

Denominators are the planned samples of the planned problems: what is missing, for whatever reason, counts as a failure.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from drkernel_q.audit import Audit
from drkernel_q.evaluation import Baseline
from drkernel_q.metric import (
    DRAWS,
    THRESHOLDS,
    Estimate,
    Speed,
    Tally,
    bootstrap,
    fast_share,
    last_turn,
    mean_interval,
    padded,
    pass_share,
    speed,
    tally,
)
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Group, Trajectory, Turn
from drkernel_q.value import Value

#: Which turn of a trajectory counts: the last one, or the best of the history (the article's †).
Pick = Literal["last", "best"]
_LEVEL = re.compile(r"([1-4])/")


class Interval(Value):
    """A share and its 95 % bootstrap interval over problems, from 0 to 1."""

    value: float
    low: float
    high: float


class Grade(Value):
    """One row: a part of the suite, a baseline, and which turn counts."""

    part: str
    """`level 1` to `level 4` of KernelBench, or `others`."""
    baseline: Baseline
    pick: Pick
    problems: int
    samples: int
    """Planned for each problem."""
    sound_only: bool
    """Whether problems are left out on which audits say that speed is no achievement."""
    correct: Interval
    """Share that is honest and correct."""
    fast: dict[str, Interval]
    """Fast@p by p."""
    passes: dict[str, Interval]
    """Chance that one of k samples is honest and correct, and at least as fast as the baseline: `k` to share."""
    hack_rate: Interval | None
    """Rejected of all evaluated kernels, over all turns; None without any."""
    lazy_rate: Interval | None
    """Lazy of all honest and correct kernels; None without any."""


class Graded(NamedTuple):
    """A problem and what is there of its samples."""

    problem: Problem
    group: Group
    audits: Mapping[str, Audit]
    """By kind of device."""


def part_of(problem: Problem) -> str:
    """Name the part of a suite that a problem belongs to."""
    match = _LEVEL.match(problem.name)
    return f"level {match[1]}" if match else "others"


def is_degenerate(graded: Graded) -> bool:
    """Whether an audit, on any kind of device, says that speed on the problem is no achievement (it earns none)."""
    return any(not audit.speed_rewarded for audit in graded.audits.values())


def grades(
    graded: Sequence[Graded], *, samples: int, turns: int, baselines: Sequence[Baseline], draws: int = DRAWS
) -> list[Grade]:
    """Grade each part, with each baseline, by the last turn and, of several turns, by the best.

    Where audits flag problems, a part is graded once more without them.
    """
    rows = []
    for part in sorted({part_of(each.problem) for each in graded}):
        members = [each for each in graded if part_of(each.problem) == part]
        sound = [each for each in members if not is_degenerate(each)]
        for chosen in [members, sound] if 0 < len(sound) < len(members) else [members]:
            rows += [
                _grade(chosen, part, baseline, pick, samples, chosen is sound, draws)
                for baseline in baselines
                for pick in _picks(turns)
            ]
    return rows


def _picks(turns: int) -> Sequence[Pick]:
    return ("last", "best") if turns > 1 else ("last",)


def _grade(
    graded: Sequence[Graded], part: str, baseline: Baseline, pick: Pick, samples: int, sound_only: bool, draws: int
) -> Grade:
    rows = [_speeds(each, baseline, pick, samples) for each in graded]

    def over(share: Callable[[Sequence[Speed]], float]) -> Interval:
        return _interval(mean_interval([share(row) for row in rows], draws=draws))

    tallies = [tally(turn for each in one.group.trajectories for turn in each.turns) for one in graded]
    return Grade(
        part=part,
        baseline=baseline,
        pick=pick,
        problems=len(graded),
        samples=samples,
        sound_only=sound_only,
        correct=over(lambda row: fast_share(row, 0.0)),
        fast={f"{p:g}": over(lambda row, p=p: fast_share(row, p)) for p in THRESHOLDS},  # type: ignore[misc]
        passes={str(k): over(lambda row, k=k: pass_share(row, k, 1.0)) for k in sorted({1, samples})},  # type: ignore[misc]
        hack_rate=_rate(tallies, lambda total: total.hack_rate, draws),
        lazy_rate=_rate(tallies, lambda total: total.lazy_rate, draws),
    )


def _speeds(graded: Graded, baseline: Baseline, pick: Pick, samples: int) -> list[Speed]:
    def found(trajectory: Trajectory) -> Speed:
        last = last_turn(trajectory)
        turns = trajectory.turns if pick == "best" else () if last is None else (last,)
        known = [each for turn in turns if (each := _speed(turn, baseline, graded.audits)) is not None]
        return max(known, default=None)

    return padded([found(trajectory) for trajectory in graded.group.trajectories], samples)


def _speed(turn: Turn, baseline: Baseline, audits: Mapping[str, Audit]) -> Speed:
    evaluation = turn.evaluation
    audit = audits.get(evaluation.environment.device_kind) if evaluation else None
    return speed(turn, baseline, audit)


def _rate(tallies: Sequence[Tally], rate: Callable[[Tally], float | None], draws: int) -> Interval | None:
    def statistic(parts: Sequence[Tally]) -> float:
        total = Tally(*(sum(column) for column in zip(*parts, strict=True)))
        return rate(total) or 0.0

    known = rate(Tally(*(sum(column) for column in zip(*tallies, strict=True))))
    return None if known is None else _interval(bootstrap(tallies, statistic, draws=draws))


def _interval(estimate: Estimate) -> Interval:
    return Interval(value=estimate.value, low=estimate.low, high=estimate.high)
