"""Selection: which trajectories are worth learning from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from drkernel_q.corpus.conversation import best_turn
from drkernel_q.corpus.normal import normal_hash
from drkernel_q.evaluation import Outcome
from drkernel_q.reward import reward
from drkernel_q.trajectory import Trajectory, Turn
from drkernel_q.value import Value


class Selection(Value):
    """What a trajectory must have, and how many of a problem are kept."""

    correct: bool = False
    """Some turn's kernel is correct, whatever its integrity."""
    honest: bool = False
    """Some turn's kernel is correct and clean."""
    improved: bool = False
    """Some turn earned more than a judged one before it."""
    min_speedup: float | None = None
    """The best correct and clean kernel is at least so much faster."""
    cut_after_best: bool = False
    """Leave out the turns after the best one."""
    best: int | None = None
    """Keep so many of each problem, those with the highest rewards; None keeps all."""
    distinct: bool = False
    """Keep one of those of a problem whose best (or last) kernels differ in names and layout alone."""


@dataclass(slots=True)
class Tally:
    """How many there were, and why some were left out."""

    seen: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """By reason."""

    def drop(self, reason: str) -> None:
        """Count one that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


def select(trajectories: Iterable[Trajectory], selection: Selection, tally: Tally | None = None) -> list[Trajectory]:
    """Choose trajectories; those of a problem stay in their order."""
    tally = tally or Tally()
    by_problem: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tally.seen += 1
        reason = _fault(trajectory, selection)
        if reason is not None:
            tally.drop(reason)
            continue
        by_problem.setdefault(trajectory.problem_hash, []).append(_cut(trajectory, selection))
    chosen = [each for group in by_problem.values() for each in _of_problem(group, selection, tally)]
    tally.kept = len(chosen)
    return chosen


def _fault(trajectory: Trajectory, selection: Selection) -> str | None:
    judged = [turn.evaluation for turn in trajectory.turns if turn.evaluation]
    best = best_turn(trajectory.turns)
    if not trajectory.turns:
        return "empty"
    if selection.correct and not any(each.outcome is Outcome.CORRECT for each in judged):
        return "not correct"
    if (selection.honest or selection.min_speedup is not None) and best is None:
        return "not honest"
    if selection.improved and not _improved(trajectory.turns):
        return "not improved"
    speedup = best.evaluation.speedup if best and best.evaluation else None
    if selection.min_speedup is not None and (speedup or 0.0) < selection.min_speedup:
        return "too slow"
    return None


def _improved(turns: Sequence[Turn]) -> bool:
    rewards = [reward(turn.evaluation) for turn in turns if turn.evaluation]
    return any(later > earlier for place, earlier in enumerate(rewards) for later in rewards[place + 1 :])


def _cut(trajectory: Trajectory, selection: Selection) -> Trajectory:
    best = best_turn(trajectory.turns)
    if not selection.cut_after_best or best is None:
        return trajectory
    return trajectory.model_copy(update={"turns": tuple(t for t in trajectory.turns if t.number <= best.number)})


def _of_problem(group: list[Trajectory], selection: Selection, tally: Tally) -> Iterator[Trajectory]:
    kept = list(_distinct(group, tally)) if selection.distinct else group
    if selection.best is None:
        yield from kept
        return
    ranked = sorted(range(len(kept)), key=lambda place: (-_reward(kept[place]), place))[: selection.best]
    for place, trajectory in enumerate(kept):
        if place in ranked:
            yield trajectory
        else:
            tally.drop("others were better")


def _distinct(group: list[Trajectory], tally: Tally) -> Iterator[Trajectory]:
    seen: set[str] = set()
    for trajectory in group:
        kernel = (best_turn(trajectory.turns) or trajectory.turns[-1]).kernel
        key = normal_hash(kernel.source if kernel else "")
        if key in seen:
            tally.drop("near duplicate")
            continue
        seen.add(key)
        yield trajectory


def _reward(trajectory: Trajectory) -> float:
    best = best_turn(trajectory.turns)
    return reward(best.evaluation) if best and best.evaluation else 0.0
