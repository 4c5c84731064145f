"""Credit: from the facts of a step's rollouts to what is learned from each of their turns. Pure, and replayable."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drkernel_q.audit import Audit
from drkernel_q.lesson import Lesson
from drkernel_q.reward import turn_reward
from drkernel_q.trajectory import Turn
from policy.method import laziness, mismatch
from policy.method.advantage import group_advantages
from policy.method.batch import TurnRow
from policy.method.mismatch import MismatchDecision
from policy.method.returns import turn_returns
from policy.rollouts.rollout import RolledGroup
from policy.training.recipe import TrainConfig

#: Log-probabilities of a turn's output tokens under the policy that is trained, by place.
Logprobs = Mapping["Place", NDArray[np.float32]]
#: Audits of each problem, by kind of device.
Audits = Mapping[str, Mapping[str, Audit]]


class Place(NamedTuple):
    """Where a turn is in a run; what is drawn for it depends on nothing else."""

    problem_hash: str
    trajectory: int
    """Number among the trajectories of this problem in this run, from 1."""
    turn: int


def by_trajectory(rolled: RolledGroup) -> list[list[tuple[Place, Turn]]]:
    """List the turns of a group by place, trajectory after trajectory."""
    return [
        [(Place(rolled.group.problem_hash, number, turn.number), turn) for turn in trajectory.turns]
        for number, trajectory in enumerate(rolled.group.trajectories, start=rolled.order.first)
    ]


def scorable(groups: Sequence[RolledGroup]) -> dict[Place, TurnRow]:
    """Return every turn whose tokens are known as a row, still without an advantage.

    A turn without its engine's token ids cannot be learned from: text is never encoded again.
    """
    rows = {}
    for place, turn in (found for group in groups for row in by_trajectory(group) for found in row):
        if turn.prompt_ids and turn.output_ids and len(turn.logprobs) == len(turn.output_ids):
            rows[place] = TurnRow(turn.prompt_ids, turn.output_ids, turn.logprobs, advantage=0.0)
    return rows


def lessons(
    groups: Sequence[RolledGroup],
    trained: Logprobs,
    config: TrainConfig,
    *,
    step: int,
    audits: Audits | None = None,
    known: Mapping[Place, Lesson] | None = None,
) -> list[Lesson]:
    """Decide what every turn of a step is worth, in the order of the groups and their turns.

    `trained` holds log-probabilities under the weights before the step, for all of `scorable`. A draw of PRS that is
    `known` from an earlier try of the step is not made again.
    """
    return [lesson for group in groups for lesson in _of_group(group, trained, config, step, audits or {}, known or {})]


def _of_group(
    rolled: RolledGroup,
    trained: Logprobs,
    config: TrainConfig,
    step: int,
    audits: Audits,
    known: Mapping[Place, Lesson],
) -> list[Lesson]:
    table = by_trajectory(rolled)
    of_problem = audits.get(rolled.group.problem_hash, {})
    rewards = [[_reward(turn, config, of_problem) for _, turn in row] for row in table]
    matched = [match(row, trained, config) for row in table]
    drawn = [[_drawn(place, turn, config, known.get(place)) for place, turn in row] for row in table]
    kept = [[m.kept and not d.lazy for m, d in zip(*row, strict=True)] for row in zip(matched, drawn, strict=True)]
    returns = [turn_returns(row, config.advantage.gamma) for row in rewards]
    advantages = group_advantages(rewards, config.advantage, kept)
    return [
        drawn[i][t].model_copy(
            update={
                "step": step,
                "reward": rewards[i][t],
                "turn_return": returns[i][t],
                "advantage": advantages[i][t],
                "mismatch": _verdict(matched[i][t]),
                "mean_log_ratio": None if math.isnan(matched[i][t].mean) else matched[i][t].mean,
            }
        )
        for i, row in enumerate(table)
        for t in range(len(row))
    ]


def _reward(turn: Turn, config: TrainConfig, audits: Mapping[str, Audit]) -> float | None:
    kind = turn.evaluation.environment.device_kind if turn.evaluation else ""
    return turn_reward(turn, config.reward, audits.get(kind))


def match(row: Sequence[tuple[Place, Turn]], trained: Logprobs, config: TrainConfig) -> list[MismatchDecision]:
    """Decide MRS for the turns of one trajectory; one whose tokens are not known has no ratio, and rejects."""
    unknown = np.full(1, np.nan)
    ratios = [
        mismatch.log_ratios(trained[place], turn.logprobs) if place in trained else unknown for place, turn in row
    ]
    return mismatch.decide(ratios, config.mismatch)


def _drawn(place: Place, turn: Turn, config: TrainConfig, known: Lesson | None) -> Lesson:
    """Make the draw of PRS for a turn, or find it again; only turns that may be lazy have one."""
    blank = Lesson(problem_hash=place.problem_hash, trajectory=place.trajectory, turn=place.turn, step=1)
    if known is not None and known.draw is not None:
        return known
    evaluation = turn.evaluation
    if not config.laziness.enabled or evaluation is None or not evaluation.honest_and_correct:
        return blank
    name = f"{place.problem_hash}/{place.trajectory}"
    decision = laziness.decide(evaluation, config.seed, name, place.turn, config.laziness)
    return blank.model_copy(
        update={"keep_probability": decision.probability, "draw": decision.drawn, "lazy": not decision.kept}
    )


def _verdict(decision: MismatchDecision) -> Literal["kept", "band", "veto", "nonfinite"]:
    if decision.kept:
        return "kept"
    if decision.nonfinite:
        return "nonfinite"
    return "veto" if decision.vetoed else "band"


def learned_rows(rows: Mapping[Place, TurnRow], taught: Sequence[Lesson]) -> dict[Place, TurnRow]:
    """Return the rows of the loss: those with a reward, the rejected ones marked; a missing reward is no row at all."""
    found = {}
    for lesson in taught:
        place = Place(lesson.problem_hash, lesson.trajectory, lesson.turn)
        row = rows.get(place)
        if row is not None and lesson.advantage is not None:
            found[place] = TurnRow(
                row.prompt_ids, row.output_ids, row.sampler_logprobs, lesson.advantage, kept=lesson.is_learned
            )
    return found
