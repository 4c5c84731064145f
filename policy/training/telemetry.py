"""Telemetry: the numbers of a step that people look at, computed from its facts and lessons alone."""

import statistics
from collections.abc import Iterable, Sequence

from drkernel_q.lesson import Lesson
from drkernel_q.metric import fast_by_turn, mean, tally
from drkernel_q.reward import RewardConfig, junk_pays
from drkernel_q.trajectory import Group, Turn

#: The speedups whose shares are followed from step to step: the article's figures 4 and 5.
FOLLOWED = (1.0, 1.2)

Metrics = dict[str, float]


def rollout_metrics(
    groups: Sequence[Group], *, turns: int, samples: int, lazy_below: float, reward: RewardConfig | None = None
) -> Metrics:
    """Describe the facts of a step: shares over fixed denominators (`drkernel_q.metric`), lengths and speedups."""
    found: Metrics = {}
    for p in FOLLOWED:
        for rate in fast_by_turn(groups, p, turns, samples):
            found[f"fast_{p:g}/turn_{rate.turn}"] = rate.fast
            found[f"fast_{p:g}/best_of_{rate.turn}"] = rate.best_so_far
    every = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    return found | _rates(every, lazy_below) | _speeds(every, reward) | _lengths(every)


def _rates(turns: Sequence[Turn], lazy_below: float) -> Metrics:
    """What became of the turns; a share whose denominator is 0 is left out."""
    total = tally(turns, lazy_below)
    shares = {
        "rate/without_kernel": (total.without_kernel, total.turns),
        "rate/infrastructure": (total.unevaluated, total.turns - total.without_kernel),
        "rate/correct": (total.correct, total.turns),
        "rate/honest": (total.honest, total.turns),
        "rate/truncated": (sum(turn.finish_reason == "length" for turn in turns), total.turns),
        "rate/hack": (total.rejected, total.evaluated),
        "rate/lazy": (total.lazy, total.honest),
    }
    return {name: count / whole for name, (count, whole) in shares.items() if whole}


def _speeds(turns: Sequence[Turn], reward: RewardConfig | None) -> Metrics:
    right = [turn.evaluation for turn in turns if turn.evaluation and turn.evaluation.honest_and_correct]
    if not right:
        return {}
    speedups = sorted(each.speedup for each in right if each.speedup is not None)
    ratios = [each.profile_ratio for each in right if each.profile_ratio is not None]
    found: Metrics = {
        "pr/missing": 1 - len(ratios) / len(right),
        "pr/hackable": mean(float(junk_pays(each, reward)) for each in right),
    }
    if speedups:
        found |= {"speedup/median": statistics.median(speedups), "speedup/max": speedups[-1]}
    if ratios:
        found["pr/mean"] = mean(ratios)
    return found


def _lengths(turns: Sequence[Turn]) -> Metrics:
    outputs = [len(turn.output_ids) for turn in turns if turn.output_ids]
    if not outputs:
        return {}
    return {
        "tokens/prompt": float(sum(len(turn.prompt_ids) for turn in turns)),
        "tokens/output": float(sum(outputs)),
        "tokens/output_mean": mean(outputs),
        "tokens/output_max": float(max(outputs)),
    }


def lesson_metrics(lessons: Sequence[Lesson], *, groups: int) -> Metrics:
    """Describe what was made of a step's turns: rewards, what was learned from, what PRS left out."""
    rewards = [lesson.reward for lesson in lessons if lesson.reward is not None]
    admitted = [lesson for lesson in lessons if lesson.advantage is not None]
    drawn = [lesson for lesson in lessons if lesson.keep_probability is not None]
    found: Metrics = {"rows/turns": float(len(lessons)), "rows/admitted": float(len(admitted))}
    found["rows/learned"] = float(sum(lesson.is_learned for lesson in lessons))
    if rewards:
        found |= {"reward/mean": mean(rewards), "reward/max": max(rewards)}
        found |= {f"reward/turn_{turn}": value for turn, value in _by_turn(lessons)}
    if admitted:
        found["advantage/abs_mean"] = mean(abs(lesson.advantage or 0.0) for lesson in admitted)
    if groups:
        found["reward/groups_without_variance"] = 1 - len(_varied(lessons)) / groups
    if drawn:
        found["prs/acceptance"] = 1 - mean(float(lesson.lazy) for lesson in drawn)
        found["prs/probability"] = mean(lesson.keep_probability or 0.0 for lesson in drawn)
    return found


def _by_turn(lessons: Sequence[Lesson]) -> Iterable[tuple[int, float]]:
    numbers = sorted({lesson.turn for lesson in lessons})
    for number in numbers:
        rewards = [lesson.reward for lesson in lessons if lesson.turn == number and lesson.reward is not None]
        if rewards:
            yield number, mean(rewards)


def _varied(lessons: Sequence[Lesson]) -> set[str]:
    """Problems whose trajectories have an advantage that is not 0: only from them anything is learned."""
    return {lesson.problem_hash for lesson in lessons if lesson.advantage}


def staleness_metrics(groups: Sequence[Group], version: int) -> Metrics:
    """Say how many versions older than the one being trained the weights were that wrote the turns."""
    ages = [
        version - turn.policy_version
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
        if turn.policy_version is not None
    ]
    return {"staleness/mean": mean(ages), "staleness/max": float(max(ages))} if ages else {}
