"""Scaling: sequential test-time search, one model refining its kernels for one problem over many turns.

Every turn goes through the rollout's own path and is stored when it is judged, so a search that is killed goes on to
the same history. What differs from a rollout is the prompt (`policy.search.context`) and when it ends
(`policy.search.budget`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from drkernel_q.audit import Audit
from drkernel_q.errors import PromptTooLong
from drkernel_q.metric import speed
from drkernel_q.problem import Problem
from drkernel_q.prompt import Templates, feedback_turn, first_turn
from drkernel_q.reward import RewardConfig, turn_reward
from drkernel_q.trajectory import Message, Turn
from drkernel_q.value import Value
from policy.rollouts.rollout import Rollout, play_turn
from policy.sampler.protocol import Sampler
from policy.search.budget import Budget, Limits, Tokens, best_so_far, stalled
from policy.search.context import WINDOW, Strategy, chosen, without_worst

#: Turns in a row that nobody could judge after which a chain gives up.
UNJUDGED = 3


class ScalingConfig(Value):
    """How a search goes; how many turns and chains, and how completions are drawn, is the rollout's configuration."""

    strategy: Strategy = "context"
    """`context`: the prompt holds the best turns; `vanilla`: it holds all of them, until the context is full."""
    window: Annotated[int, Field(ge=0)] = WINDOW
    """Turns that a prompt begins with (w); 0 asks for a kernel from nothing, turn by turn."""
    span: Annotated[int, Field(ge=1)] | None = None
    """Turns that a prompt grows to before it starts anew (T0); None is one more than `window`."""
    limits: Limits = Limits()
    reward: RewardConfig = RewardConfig()

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.span is not None and self.span <= self.window:
            raise ValueError(f"a prompt that grows to {self.span} turns has no room for {self.window} and a new one")
        return self


class Step(NamedTuple):
    """A turn of a search, as it is told to whoever watches."""

    chain: int
    turn: Turn
    reward: float | None
    best: float
    """Best reward of the chain so far."""
    held: tuple[int, ...]
    """Numbers of the turns that its prompt held; empty for a turn of before a resumption."""
    tokens: Tokens
    resumed: bool


@dataclass
class Chain:
    """One trajectory of a search."""

    number: int
    turns: list[Turn] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    stopped: str = ""
    """Why it ended: `turns`, `context`, `patience`, `target`, `time`, `tokens`, `cost` or `unjudged`."""

    @property
    def last(self) -> Turn | None:
        """The last turn."""
        return self.turns[-1] if self.turns else None


class Found(NamedTuple):
    """A turn that was worth something."""

    chain: int
    turn: Turn
    reward: float


@dataclass(frozen=True)
class Searched:
    """What a search of one problem came to."""

    problem: Problem
    chains: tuple[Chain, ...]

    def ranking(self) -> list[Found]:
        """Turns that were worth something, the best reward first; of equals the earliest turn."""
        found = [
            Found(chain.number, turn, reward)
            for chain in self.chains
            for turn, reward in zip(chain.turns, chain.rewards, strict=True)
            if reward
        ]
        return sorted(found, key=lambda each: (-each.reward, each.turn.number, each.chain))


class Search:
    """A search of one problem; several share a budget."""

    def __init__(
        self,
        problem: Problem,
        rollout: Rollout,
        config: ScalingConfig,
        budget: Budget,
        *,
        audits: Mapping[str, Audit] | None = None,
        told: Callable[[Step], None] = lambda _: None,
    ) -> None:
        """Take what is needed; `audits` of the problem are by kind of device."""
        self._problem = problem
        self._rollout = rollout
        self._config = config
        self._budget = budget
        self._audits = audits or {}
        self._told = told
        self._reached = False

    async def run(self) -> Searched:
        """Go on where the store says that the search is, until every chain has ended.

        Raises:
            PromptTooLong: not even the first prompt fits into the context.
            NoSampler, BadProblem, Unavailable: as `play_turn`; everything that was judged is stored.
        """
        await self._rollout.announce(self._problem)
        chains = [Chain(number) for number in range(1, self._rollout.config.group_size + 1)]
        for chain in chains:
            for turn in (await self._rollout.stored(self._problem, chain.number)).turns:
                self._take(chain, turn, (), resumed=True)
        try:
            async with asyncio.TaskGroup() as tasks:
                for chain in chains:
                    tasks.create_task(self._refine(chain))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return Searched(self._problem, tuple(chains))

    async def _refine(self, chain: Chain) -> None:
        while not chain.stopped:
            chain.stopped = self._over(chain) or await self._step(chain) or ""

    def _over(self, chain: Chain) -> str | None:
        limits = self._config.limits
        if self._reached:
            return "target"
        if len(chain.turns) >= self._rollout.config.turns:
            return "turns"
        if limits.patience is not None and stalled(chain.rewards, limits.patience):
            return "patience"
        if len(chain.rewards) >= UNJUDGED and all(found is None for found in chain.rewards[-UNJUDGED:]):
            return "unjudged"
        return None

    async def _step(self, chain: Chain) -> str | None:
        """Make one more turn; or return why there is none."""
        held = self._held(chain)
        if held is None:
            return "context"
        prompt = dialogue(self._problem, [chain.turns[index] for index in held], self._rollout.templates)
        longest = Tokens(self._rollout.sampler.encode(prompt).tokens, self._rollout.config.sampling.max_new_tokens)
        refused = self._budget.reserve(longest)
        if refused is not None:
            return refused
        used = longest
        try:
            turn = await play_turn(self._problem, chain.number, len(chain.turns) + 1, prompt, self._rollout)
            assert turn is not None, "a prompt that was found to fit does not fit"
            used = tokens_of(turn, self._rollout.sampler)
        finally:
            self._budget.settle(longest, used)
        await self._rollout.keep(self._problem, chain.number, turn)
        self._take(chain, turn, tuple(chain.turns[index].number for index in held), resumed=False)
        return None

    def _held(self, chain: Chain) -> list[int] | None:
        """Indices of the turns that the next prompt holds; None when the context is full.

        Vanilla history is never cut. The best turns make room for each other, the worst first.
        """
        context = self._config.strategy == "context"
        held = list(range(len(chain.turns)))
        if context:
            held = chosen(chain.rewards, self._config.window, self._config.span)
        while not self._fits([chain.turns[index] for index in held]):
            if not held:
                raise PromptTooLong(
                    f"The first prompt for {self._problem.name} and "
                    f"{self._rollout.config.sampling.max_new_tokens} tokens of answer do not fit into "
                    f"{self._rollout.context_tokens} tokens; allow shorter answers by `max_new_tokens`."
                )
            if not context:
                return None
            held = without_worst(held, chain.rewards)
        return held

    def _fits(self, turns: Sequence[Turn]) -> bool:
        prompt = self._rollout.sampler.encode(dialogue(self._problem, turns, self._rollout.templates))
        return prompt.tokens + self._rollout.config.sampling.max_new_tokens <= self._rollout.context_tokens

    def _take(self, chain: Chain, turn: Turn, held: tuple[int, ...], *, resumed: bool) -> None:
        evaluation = turn.evaluation
        audit = self._audits.get(evaluation.environment.device_kind) if evaluation else None
        reward = turn_reward(turn, self._config.reward, audit)
        tokens = tokens_of(turn, self._rollout.sampler)
        if resumed:
            self._budget.book(tokens)
        chain.turns.append(turn)
        chain.rewards.append(reward)
        target = self._config.limits.target
        if target is not None and reward and (speed(turn, audit=audit) or 0.0) >= target:
            self._reached = True
        self._told(Step(chain.number, turn, reward, best_so_far(chain.rewards)[-1], held, tokens, resumed))


def dialogue(problem: Problem, turns: Sequence[Turn], templates: Templates) -> tuple[Message, ...]:
    """Return what the model is shown: the task, and the turns as if they had followed each other."""
    shown: list[Message] = []
    for turn in turns:
        shown += [Message(role="assistant", content=turn.completion), feedback_turn(turn, templates)]
    return (*first_turn(problem, templates), *shown)


def tokens_of(turn: Turn, sampler: Sampler) -> Tokens:
    """Count the tokens of a turn; where the engine kept them to itself, as the sampler estimates them."""
    prompt = len(turn.prompt_ids) or sampler.encode(turn.prompt).tokens
    answer = Message(role="assistant", content=turn.completion)
    return Tokens(prompt, len(turn.output_ids) or sampler.encode([answer]).tokens)
