"""Rollout: a model writes kernels over several turns, the queue judges them while it goes on writing.

Every turn is stored as soon as it is judged. Whoever starts the same run again goes on where it was: stored turns are
not sampled again, and the seed of every other one follows from its place alone.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field

from drkernel_q.errors import BadProblem, PromptTooLong
from drkernel_q.kernel import extract_kernel
from drkernel_q.problem import Problem
from drkernel_q.prompt import Templates, feedback_turn, first_turn, load_templates
from drkernel_q.store import Store
from drkernel_q.trajectory import Group, Message, Trajectory, Turn
from drkernel_q.value import Value
from policy.rollouts.flow import Flow
from policy.rollouts.judging import Judge
from policy.sampler.protocol import Sampler, Sampling

log = logging.getLogger(__name__)
Result = TypeVar("Result")

Count = Annotated[int, Field(ge=1)]


class RolloutConfig(Value):
    """How trajectories are made."""

    group_size: Count = 16
    """Trajectories a problem (K)."""
    turns: Count = 3
    """Longest trajectory, turns (T)."""
    sampling: Sampling = Sampling(max_new_tokens=8192)
    """How completions are drawn; its seed is not used, since every turn has its own."""
    context_tokens: Count = 32_768
    """Longest prompt and completion together; the sampler's own context may be shorter."""
    templates: str = "default"
    """Set of prompt templates: `default`, `compact`, or a folder."""
    tokens_in_flight: Count = 1_048_576
    """Tokens of all completions that are being written, at their longest, with their prompts."""
    evaluations_in_flight: Count = 512
    """Kernels that may wait for facts before no new completion is begun."""
    groups_in_flight: Count = 64
    """Problems that are worked on at once."""


class Rollout:
    """All that a rollout needs; one for a run."""

    def __init__(
        self,
        sampler: Sampler,
        judge: Judge,
        config: RolloutConfig,
        *,
        run: str = "rollout",
        seed: int = 0,
        store: Store | None = None,
    ) -> None:
        """Name the run in the store, and the seed of all its turns; without a store, nothing can be resumed.

        Raises:
            BadSettings: there are no such templates.
        """
        self.sampler = sampler
        self.judge = judge
        self.config = config
        self.run = run
        self.seed = seed
        self.store = store
        self.templates = load_templates(config.templates)
        self.flow = Flow(config.tokens_in_flight, config.evaluations_in_flight)
        self._writing = asyncio.Lock()

    @property
    def context_tokens(self) -> int:
        """Longest prompt and completion together that a turn may take."""
        return min(self.config.context_tokens, self.sampler.context_tokens)

    async def stored(self, problem: Problem, number: int) -> Trajectory:
        """Find what there is of a trajectory."""
        store = self.store
        if store is None:
            return Trajectory(problem_hash=problem.hash, turns=())
        return await self._in_turn(lambda: store.open_trajectory(self.run, problem.hash, number))

    async def keep(self, problem: Problem, number: int, turn: Turn) -> None:
        """Store a turn."""
        store = self.store
        if store is not None:
            await self._in_turn(lambda: store.add_turn(self.run, problem.hash, number, turn))

    async def announce(self, problem: Problem) -> None:
        """Store a problem, which its trajectories need."""
        store = self.store
        if store is not None:
            await self._in_turn(lambda: store.add_problem(problem))

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Do one thing with the store after the other: it has one writer, and others should not time out at it.

        Whoever is cancelled meanwhile waits for its end: a turn that was judged is not lost.
        """
        doing = asyncio.create_task(self._do(work))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise

    async def _do(self, work: Callable[[], Result]) -> Result:
        async with self._writing:
            return await asyncio.to_thread(work)


class GroupOrder(NamedTuple):
    """A group that is wanted."""

    problem: Problem
    first: int = 1
    """Number of its first trajectory among those of the problem in the run; a later step goes on counting."""


class RolledGroup(NamedTuple):
    """A group that is there."""

    order: GroupOrder
    group: Group
    """Its trajectories by number, `order.first` and up."""


def turn_seed(seed: int, problem_hash: str, trajectory: int, turn: int) -> int:
    """Return the seed of a turn, 63 bits: a hash of its place, the same whenever and wherever it is drawn."""
    place = f"{seed}/{problem_hash}/{trajectory}/{turn}"
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()) >> 1


def next_prompt(problem: Problem, turns: Sequence[Turn], templates: Templates) -> tuple[Message, ...]:
    """Return what the model is shown next: everything so far, and what became of the last turn."""
    if not turns:
        return first_turn(problem, templates)
    last = turns[-1]
    return (*last.prompt, Message(role="assistant", content=last.completion), feedback_turn(last, templates))


async def play_turn(
    problem: Problem, number: int, place: int, prompt: tuple[Message, ...], rollout: Rollout, *, rank: int = 0
) -> Turn | None:
    """Sample one turn and have its kernel judged; None when prompt and completion would not fit into the context.

    `number` is that of the trajectory, `place` that of the turn in it, both from 1. Nothing is stored.

    Raises:
        NoSampler: the engine failed and did not come back.
        BadProblem, Unavailable: as `Judge.evaluate`.
    """
    encoded = rollout.sampler.encode(prompt)
    sampling = rollout.config.sampling
    longest = encoded.tokens + sampling.max_new_tokens
    if longest > rollout.context_tokens:
        return None
    seeded = sampling.model_copy(update={"seed": turn_seed(rollout.seed, problem.hash, number, place)})
    async with rollout.flow.sampling(longest, rank):
        sample = await rollout.sampler.sample(encoded, seeded)
    kernel = extract_kernel(sample.text, name=f"{problem.name} {number}.{place}")
    evaluation = None
    if kernel is not None:
        with rollout.flow.judging():
            evaluation = await rollout.judge.evaluate(problem, kernel)
    return Turn(
        number=place,
        prompt=prompt,
        completion=sample.text,
        kernel=kernel,
        evaluation=evaluation,
        prompt_ids=encoded.ids,
        output_ids=sample.output_ids,
        logprobs=sample.logprobs,
        finish_reason=sample.finish_reason,
        policy_version=sample.policy_version,
    )


async def rollout_trajectory(problem: Problem, number: int, rollout: Rollout, *, rank: int = 0) -> Trajectory:
    """Make a trajectory, or finish the one that is stored; its problem is in the store already.

    It ends after `turns` turns, or before a turn that would not fit into the context: nothing is cut to make room. Of
    those who wait for the sampler, the lowest `rank` goes first.

    Raises:
        PromptTooLong: not even the first turn fits.
        NoSampler, BadProblem, Unavailable: as `play_turn`.
    """
    turns = list((await rollout.stored(problem, number)).turns)
    while len(turns) < rollout.config.turns:
        prompt = next_prompt(problem, turns, rollout.templates)
        turn = await play_turn(problem, number, len(turns) + 1, prompt, rollout, rank=rank)
        if turn is None and not turns:
            raise PromptTooLong(
                f"The first prompt for {problem.name} and {rollout.config.sampling.max_new_tokens} tokens of answer "
                f"do not fit into {rollout.context_tokens} tokens; allow shorter answers by `max_new_tokens`."
            )
        if turn is None:
            break
        await rollout.keep(problem, number, turn)
        turns.append(turn)
    return Trajectory(problem_hash=problem.hash, turns=tuple(turns))


async def rollout_groups(orders: Iterable[GroupOrder], rollout: Rollout) -> AsyncGenerator[RolledGroup]:
    """Yield groups as they are completed; sampling and judging go on meanwhile.

    A problem that cannot be used, or whose first prompt is too long, is told to the log and yields no group. What is
    under way when the iteration ends early is cancelled; what was stored stays.

    Raises:
        NoSampler, Unavailable: as `play_turn`; everything that was judged is stored.
    """
    running: set[asyncio.Task[RolledGroup | None]] = set()
    todo = enumerate(orders)
    try:
        while True:
            while len(running) < rollout.config.groups_in_flight and (following := next(todo, None)) is not None:
                rank, order = following
                running.add(asyncio.create_task(_group(order, rank, rollout)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for group in [task.result() for task in done]:
                if group is not None:
                    yield group
    finally:
        await _cancel(running)


async def _group(order: GroupOrder, rank: int, rollout: Rollout) -> RolledGroup | None:
    problem, first = order
    try:
        await rollout.announce(problem)
        numbers = range(first, first + rollout.config.group_size)
        trajectories = await _all(rollout_trajectory(problem, number, rollout, rank=rank) for number in numbers)
    except (BadProblem, PromptTooLong) as error:
        log.warning("There are no rollouts for %s: %s", problem.name, error, extra={"action": "no_rollout"})
        return None
    return RolledGroup(order, Group(problem_hash=problem.hash, trajectories=tuple(trajectories)))


async def _all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Wait for all; the first that fails ends the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
