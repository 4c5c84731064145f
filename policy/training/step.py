"""The training step: rollout, judge, learn, publish."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from drkernel_q.lesson import Lesson
from drkernel_q.metric import mean
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from policy.method import mismatch
from policy.method.batch import TurnRow
from policy.rollouts.phase import Phases
from policy.rollouts.rollout import GroupOrder, RolledGroup, Rollout, rollout_groups
from policy.training.credit import Audits, Place, by_trajectory, learned_rows, lessons, match, scorable
from policy.training.learner import Learner, RowScore
from policy.training.order import orders
from policy.training.publisher import Publisher
from policy.training.recipe import TrainConfig
from policy.training.telemetry import Metrics, lesson_metrics, rollout_metrics, staleness_metrics

Result = TypeVar("Result")
Rolling = asyncio.Task[list[RolledGroup]]


class Stopped(Exception):
    """The run is to stop, and the step was not taken; what was sampled stays in the store."""


class Report(NamedTuple):
    """What a step came to."""

    step: int
    groups: list[RolledGroup]
    lessons: list[Lesson]
    metrics: Metrics


class TrainingStep:
    """One step after the other, each on the weights of the one before."""

    def __init__(
        self,
        config: TrainConfig,
        problems: Sequence[Problem],
        store: Store,
        *,
        rollout: Rollout,
        learner: Learner,
        publisher: Publisher,
        phases: Phases,
    ) -> None:
        """Put the parts together."""
        self.config = config
        self.store = store
        self.problems = problems
        self.rollout = rollout
        self.learner = learner
        self.publisher = publisher
        self.phases = phases
        self.seconds: dict[str, float] = {}
        self.stopping = asyncio.Event()
        self._ahead: Rolling | None = None

    async def __call__(self, step: int) -> Report:
        """Take step number `step`, from 1.

        With staleness 1 the rollouts of the step after it are made meanwhile, all of them by the weights of before.

        Raises:
            Stopped: `stopping` was set before all was sampled and judged.
        """
        self.seconds = {}
        self.phases.begin(f"step {step}")
        began = time.monotonic()
        rolling, self._ahead = self._ahead or self.roll(step), None
        groups = await self.unless_stopped(rolling)  # samples and facts
        if self.config.staleness and step < self.config.steps:
            self._ahead = self.roll(step + 1)
        return await self.learned(groups, step, began)

    async def learned(self, groups: list[RolledGroup], step: int, began: float) -> Report:
        """Learn from the rollouts of a step, and publish once nobody writes by the weights of before."""
        async with self.phases.phase("learn"):
            await self.publisher.make_room()
            rows = scorable(groups)
            scores = await self.score(rows)
            taught = await self.judge(groups, scores, step)  # pure, but for what is read and kept
            update = await self.learn(learned_rows(rows, taught), scores, step)
            await self.caught_up()
            with self.clock("publish"):
                await self.publisher.publish(step)
        metrics = self.describe(groups, rows, scores, taught, step) | update
        return Report(step, groups, taught, metrics | self.times(time.monotonic() - began))

    def roll(self, step: int) -> "Rolling":
        """Begin to make the rollouts of a step."""
        return asyncio.create_task(collect(self.wanted(step), self.rollout))

    async def caught_up(self) -> None:
        """Wait until the rollouts ahead are there, or the run is to stop; if they failed, the next step will say so."""
        if self._ahead is None:
            return
        with self.clock("wait"):
            stop = asyncio.create_task(self.stopping.wait())
            await asyncio.wait({self._ahead, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
        if not self._ahead.done():
            await self.leave()

    async def leave(self) -> None:
        """Give up the rollouts ahead; what was stored of them is found again."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            self._ahead = None

    def wanted(self, step: int) -> list[GroupOrder]:
        """Say which groups step number `step` trains on."""
        config, per_step = self.config, self.config.problems.per_step
        cursor = (step - 1) * per_step
        return orders(self.problems, cursor, per_step, group_size=config.rollout.group_size, seed=config.seed)

    async def unless_stopped(self, going: "asyncio.Task[Result]") -> Result:
        """Wait for a rollout, or give it up when the run is to stop."""
        stop = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({going, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not going.done():
                raise Stopped
            return going.result()
        finally:
            stop.cancel()
            going.cancel()
            await asyncio.gather(going, stop, return_exceptions=True)

    async def score(self, rows: Mapping[Place, TurnRow]) -> dict[Place, RowScore]:
        """Ask the weights before the step what they think of every turn."""
        with self.clock("logprob"):
            scores = await asyncio.to_thread(self.learner.lead, "score", list(rows.values()))
        return dict(zip(rows, scores, strict=True))

    async def judge(self, groups: Sequence[RolledGroup], scores: Mapping[Place, RowScore], step: int) -> list[Lesson]:
        """Decide what every turn is worth; draws that an earlier try of this step has made are found again."""
        audits = await asyncio.to_thread(self._audits, {group.group.problem_hash for group in groups})
        before = await asyncio.to_thread(self.store.lessons, self.rollout.run, step)
        known = {Place(lesson.problem_hash, lesson.trajectory, lesson.turn): lesson for lesson in before}
        trained = {place: score.logprobs for place, score in scores.items()}
        taught = lessons(groups, trained, self.config, step=step, audits=audits, known=known)
        await asyncio.to_thread(self.store.add_lessons, self.rollout.run, taught)
        return taught

    async def learn(self, rows: Mapping[Place, TurnRow], scores: Mapping[Place, RowScore], step: int) -> Metrics:
        """Take the optimizer's step on all rows that have a reward."""
        bypass = self.config.loss.behave == "bypass"
        behave = [row.sampler_logprobs if bypass else scores[place].logprobs for place, row in rows.items()]
        with self.clock("update"):
            return await asyncio.to_thread(self.learner.lead, "update", list(rows.values()), behave, step)

    def describe(
        self,
        groups: Sequence[RolledGroup],
        rows: Mapping[Place, TurnRow],
        scores: Mapping[Place, RowScore],
        taught: Sequence[Lesson],
        step: int,
    ) -> Metrics:
        """Compute the numbers of the step that people look at."""
        plain, config = [group.group for group in groups], self.config
        found = rollout_metrics(
            plain,
            turns=config.rollout.turns,
            samples=config.rollout.group_size,
            lazy_below=config.laziness.tau,
            reward=config.reward,
        )
        found |= lesson_metrics(taught, groups=len(groups)) | staleness_metrics(plain, step - 1)
        if rows:
            # Before anything is rejected, or the entropy would be that of what the filters like.
            found["policy/entropy"] = mean(score.entropy for score in scores.values())
            found |= _mismatch_metrics(groups, rows, scores, config)
        return found

    def times(self, whole_s: float) -> Metrics:
        """Return seconds by phase; what no phase has is bookkeeping."""
        seconds = {name: self.phases.seconds[name] for name in ("generate", "judge")} | self.seconds
        overlap = not self.config.shared_device
        rest = whole_s - sum(seconds.values())
        found = {f"time/{name}_s": value for name, value in seconds.items()} | {"time/step_s": whole_s}
        if not overlap:
            found |= {"time/bookkeeping_s": rest, "time/bookkeeping": rest / whole_s}
        return found

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase of the trainer's own."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def _audits(self, problems: set[str]) -> Audits:
        return {problem: self.store.audits(problem) for problem in problems}


async def collect(wanted: Sequence[GroupOrder], rollout: Rollout) -> list[RolledGroup]:
    """Make groups, and return them in the order in which they were wanted, whichever was there first."""
    found = {rolled.order: rolled async for rolled in rollout_groups(wanted, rollout)}
    return [found[order] for order in wanted if order in found]


def _mismatch_metrics(
    groups: Sequence[RolledGroup],
    rows: Mapping[Place, TurnRow],
    scores: Mapping[Place, RowScore],
    config: TrainConfig,
) -> Metrics:
    """Describe how far sampler and trainer are apart, by trajectories (or turns) and by tokens."""
    by_place = {place: score.logprobs for place, score in scores.items()}
    units = []
    for row in (row for group in groups for row in by_trajectory(group)):
        decided = match(row, by_place, config)
        units += decided if config.mismatch.scope == "turn" else decided[:1]
    trained = [value for score in scores.values() for value in score.logprobs.tolist()]
    sampled = [value for row in rows.values() for value in row.sampler_logprobs]
    return mismatch.telemetry(units, trained, sampled)
