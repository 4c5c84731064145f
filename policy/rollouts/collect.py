"""Cold-start collection: trajectories of any sampler, judged and stored turn by turn, for fine-tuning later.

A run that was killed and is started again goes on where it was: what is stored is not made again, and every other turn
has the seed of its place (`policy.rollouts.rollout`). So its end is that of a run that nobody killed.
"""

import time
from collections.abc import Sequence
from typing import Any

from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import Outcome
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from drkernel_q.trajectory import Trajectory, Turn
from drkernel_q.value import Value
from policy.rollouts.judging import Judge
from policy.rollouts.resumption import announce
from policy.rollouts.rollout import GroupOrder, Rollout, RolloutConfig, rollout_groups
from policy.sampler.protocol import Sampler, Sampling

#: Settings that a run may change when it goes on: how much is wanted, and how much at once.
_FREE = (
    "problems",
    "rollout.group_size",
    "rollout.tokens_in_flight",
    "rollout.evaluations_in_flight",
    "rollout.groups_in_flight",
)


class CollectConfig(Value):
    """What is collected."""

    model: str
    """Who writes: a folder, a GGUF file, a name of the hub, `vllm:MODEL`, a URL, `openai:MODEL`, `scripted:FILE`."""
    problems: tuple[str, ...]
    """Suites, folders, files and names of problems."""
    seed: int = 0
    """Seed of every turn, together with its place."""
    rollout: RolloutConfig = RolloutConfig(group_size=4, turns=5, sampling=Sampling(max_new_tokens=8192))
    """Trajectories of five turns, unless it says otherwise."""


class Tally:
    """What has been collected so far, for whoever looks on."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.wanted = 0
        """Trajectories."""
        self.finished = 0
        self.turns = 0
        self.resumed = 0
        """Turns that were stored before."""
        self.kernels = 0
        self.cut = 0
        """Answers that were cut at their longest."""
        self.unjudged = 0
        """Kernels that could not be judged, for reasons that are not theirs."""
        self.correct = 0
        self.honest = 0
        self.best_speedup: float | None = None
        """Highest speedup of a correct and clean kernel."""
        self.tokens = 0
        """Tokens written since the start of this process."""
        self._start = time.monotonic()

    def count(self, turn: Turn, *, resumed: bool = False) -> None:
        """Count a turn."""
        self.turns += 1
        if resumed:
            self.resumed += 1
        else:
            self.tokens += len(turn.output_ids)
        self.cut += turn.finish_reason == "length"
        if turn.kernel is None:
            return
        self.kernels += 1
        evaluation = turn.evaluation
        if evaluation is None:
            self.unjudged += 1
            return
        self.correct += evaluation.outcome is Outcome.CORRECT
        if evaluation.honest_and_correct:
            self.honest += 1
            self.best_speedup = max(self.best_speedup or 0.0, evaluation.speedup or 0.0)

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second since the start of this process."""
        return self.tokens / max(time.monotonic() - self._start, 1e-9)

    def document(self) -> dict[str, Any]:
        """Say it for programs."""
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return shown | {"tokens_per_s": self.tokens_per_s}

    def line(self, judging: int) -> str:
        """Say it for people, with the number of kernels that wait for facts."""
        best = "" if self.best_speedup is None else f", best {self.best_speedup:.2f}x"
        return (
            f"{self.finished} of {self.wanted} trajectories, {self.turns} turns: {self.correct} correct, "
            f"{self.honest} honest{best}; {self.tokens_per_s:.0f} tokens/s, {judging} being judged"
        )


class Collection(Rollout):
    """A rollout whose store and turns are those of a run that was announced, and that counts."""

    def __init__(self, sampler: Sampler, judge: Judge, config: CollectConfig, *, run: str, store: Store) -> None:
        """Announce the run, or go on with it.

        Raises:
            BadSettings: it was begun with other settings, or there are no such templates.
        """
        super().__init__(sampler, judge, config.rollout, run=run, seed=config.seed, store=store)
        announce(store, run, kind="collect", settings=config.model_dump(mode="json"), free=_FREE)
        self.tally = Tally()

    async def stored(self, problem: Problem, number: int) -> Trajectory:
        """Find what there is of a trajectory, and count it."""
        trajectory = await super().stored(problem, number)
        for turn in trajectory.turns:
            self.tally.count(turn, resumed=True)
        return trajectory

    async def keep(self, problem: Problem, number: int, turn: Turn) -> None:
        """Store a turn, and count it."""
        await super().keep(problem, number, turn)
        self.tally.count(turn)


async def collect(problems: Sequence[Problem], collection: Collection) -> Tally:
    """Make the trajectories that are wanted and not stored yet.

    Raises:
        NoSampler, Unavailable: as `policy.rollouts.rollout.play_turn`; everything that was judged is stored.
        BadSettings: not one problem could be begun with; the log has said why.
    """
    tally = collection.tally
    tally.wanted = len(problems) * collection.config.group_size
    async for done in rollout_groups(map(GroupOrder, problems), collection):
        tally.finished += len(done.group.trajectories)
    if tally.wanted and not tally.turns:
        raise BadSettings("Nothing was collected: no problem could be begun with. What is said above says why.")
    return tally
