"""Test-time scaling: what prompts hold, what a search may spend, when it ends, and that a killed one goes on."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drkernel_q.errors import NoSampler, PromptTooLong
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from policy.rollouts.rollout import next_prompt
from policy.sampler.protocol import Prompt, Sample, Sampling
from policy.sampler.scripted import ScriptedSampler
from policy.search.budget import Budget, Limits, Tokens
from policy.search.context import ranking
from policy.search.scaling import Chain, ScalingConfig, Search, Searched, Step, dialogue, tokens_of
from tests.rollouts import FakeJudge, a_rollout, answer, by_seed
from tests.values import SOFTMAX, an_audit, an_evaluation


async def search(
    config: ScalingConfig | None = None,
    sampler: ScriptedSampler | None = None,
    judge: FakeJudge | None = None,
    store: Store | None = None,
    *,
    turns: int = 8,
    width: int = 1,
    **rollout: object,
) -> tuple[Searched, list[Step]]:
    config = config or ScalingConfig()
    steps: list[Step] = []
    whole = a_rollout(sampler, judge, store, turns=turns, group_size=width, **rollout)
    found = await Search(SOFTMAX, whole, config, Budget(config.limits), told=steps.append).run()
    return found, steps


class Growing(ScriptedSampler):
    """Answers that hold kernels of the given speedups, one a turn; None is an answer without a kernel."""

    def __init__(self, *speedups: float | None, **more: int) -> None:
        answers = ["Sorry." if each is None else answer(f"speedup = {each}") for each in speedups]
        self._drawn = 0

        def script(prompt: Prompt, sampling: Sampling) -> str:
            self._drawn += 1
            return answers[min(self._drawn, len(answers)) - 1]

        super().__init__(script, **more)  # type: ignore[arg-type]


class Honest(FakeJudge):
    """Finds the speedup that a kernel says; below 0 it is wrong."""

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        self.asked.append(kernel.source)
        speedup = float(kernel.source.rpartition("=")[2])
        return an_evaluation(speedup=speedup, profile_ratio=1.0) if speedup > 0 else an_evaluation("wrong_value")


async def test_a_prompt_holds_the_best_turns() -> None:
    """Of 8 turns with these speedups, w = 2: 3.0 and 2.0 stay, whatever lies between."""
    found, steps = await search(
        ScalingConfig(window=2), Growing(1.0, 3.0, -1.0, 2.0, 0.5, 0.6, 1.5, 1.2), Honest(), turns=8
    )
    assert [step.held for step in steps] == [(), (1,), (1, 2), (1, 2), (2, 4), (2, 4), (2, 4), (2, 4)]
    (chain,) = found.chains
    last = chain.turns[-1]
    shown = [chain.turns[1], chain.turns[3]]
    assert last.prompt == dialogue(SOFTMAX, shown, a_rollout().templates)
    assert [message.content for message in last.prompt if message.role == "assistant"] == [
        turn.completion for turn in shown
    ]
    assert (chain.stopped, len(chain.turns)) == ("turns", 8)


async def test_a_prompt_may_grow_before_it_starts_anew() -> None:
    _, steps = await search(
        ScalingConfig(window=1, span=3), Growing(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6), Honest(), turns=7
    )
    assert [step.held for step in steps] == [(), (1,), (1, 2), (3,), (3, 4), (5,), (5, 6)]


async def test_no_window_asks_from_nothing_every_time() -> None:
    found, steps = await search(ScalingConfig(window=0), turns=5)
    assert [step.held for step in steps] == [()] * 5
    assert len({turn.prompt for turn in found.chains[0].turns}) == 1
    assert len({turn.completion for turn in found.chains[0].turns}) > 1


async def test_a_window_larger_than_the_history_holds_it_all() -> None:
    """Then both strategies ask the same."""
    wide, _ = await search(ScalingConfig(window=50), turns=6)
    vanilla, _ = await search(ScalingConfig(strategy="vanilla"), turns=6)
    assert wide.chains[0].turns == vanilla.chains[0].turns
    turns = vanilla.chains[0].turns
    assert turns[-1].prompt == next_prompt(SOFTMAX, turns[:-1], a_rollout().templates)


async def test_vanilla_ends_where_the_context_ends_and_the_best_turns_go_on() -> None:
    whole, _ = await search(ScalingConfig(strategy="vanilla"), turns=6)
    room = len(whole.chains[0].turns[3].prompt_ids) + 400
    vanilla, _ = await search(ScalingConfig(strategy="vanilla"), turns=6, context_tokens=room)
    assert (vanilla.chains[0].stopped, len(vanilla.chains[0].turns)) == ("context", 4)
    managed, steps = await search(turns=6, context_tokens=room)
    assert (managed.chains[0].stopped, len(managed.chains[0].turns)) == ("turns", 6)
    assert all(len(turn.prompt_ids) + 400 <= room for turn in managed.chains[0].turns)
    rewards = [step.reward for step in steps]
    best = ranking(rewards[:5])[0] + 1
    assert best in steps[5].held


async def test_a_first_prompt_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(PromptTooLong, match="softmax and 400 tokens"):
        await search(context_tokens=500)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30_000), st.integers(1, 3), st.integers(0, 5))
def test_the_token_budget_is_never_exceeded(most: int, width: int, window: int) -> None:
    config = ScalingConfig(window=window, limits=Limits(tokens=most))
    found, _ = asyncio.run(search(config, turns=6, width=width))
    spent = [len(turn.prompt_ids) + len(turn.output_ids) for chain in found.chains for turn in chain.turns]
    assert sum(spent) <= most
    assert {chain.stopped for chain in found.chains} <= {"turns", "tokens"}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(-1, 3).map(lambda value: round(value, 3))), min_size=1, max_size=8),
    st.integers(0, 4),
)
def test_best_so_far_never_declines(speedups: list[float | None], window: int) -> None:
    _, steps = asyncio.run(search(ScalingConfig(window=window), Growing(*speedups), Honest(), turns=len(speedups)))
    bests = [step.best for step in steps]
    assert bests == sorted(bests)
    assert bests[-1] == max([0.0, *(step.reward or 0.0 for step in steps)])


@pytest.mark.parametrize(
    ("limits", "stopped", "turns"),
    [
        (Limits(patience=2), "patience", 4),
        (Limits(target=1.4), "target", 2),
        (Limits(target=9.0), "turns", 6),
        (Limits(seconds=1e-9), "time", 0),
        (Limits(tokens=1), "tokens", 0),
    ],
)
async def test_a_search_ends_early(limits: Limits, stopped: str, turns: int) -> None:
    found, _ = await search(ScalingConfig(limits=limits), Growing(1.0, 1.5, 1.2, None, 2.0), Honest(), turns=6)
    assert (found.chains[0].stopped, len(found.chains[0].turns)) == (stopped, turns)


async def test_a_target_that_one_chain_reaches_ends_all() -> None:
    found, _ = await search(
        ScalingConfig(limits=Limits(target=1.4)), Growing(1.0, 1.0, 1.5, 1.0), Honest(), turns=50, width=2
    )
    assert [chain.stopped for chain in found.chains] == ["target", "target"]
    assert sum(len(chain.turns) for chain in found.chains) <= 4


async def test_turns_that_nobody_can_judge_are_not_shown_and_end_a_chain() -> None:
    found, steps = await search(judge=FakeJudge(failing=True), sampler=ScriptedSampler([answer("x = 1")]))
    assert (found.chains[0].stopped, len(found.chains[0].turns)) == ("unjudged", 3)
    assert [(step.reward, step.held) for step in steps] == [(None, ())] * 3
    assert found.ranking() == []


async def test_speed_counts_as_the_audit_says() -> None:
    audit = an_audit(zeros_pass=True)
    search_ = Search(
        SOFTMAX,
        a_rollout(Growing(2.0), Honest(), turns=1, group_size=1),
        ScalingConfig(),
        Budget(Limits()),
        audits={audit.environment.device_kind: audit},
    )
    assert (await search_.run()).chains[0].rewards == [1.0]


def test_the_earliest_of_equals_is_the_best() -> None:
    chains = [Chain(number, *asyncio.run(_turns(1.0, 2.0, 2.0))) for number in (1, 2)]
    best = Searched(SOFTMAX, tuple(chains)).ranking()[0]
    assert (best.chain, best.turn.number, best.reward) == (1, 2, 3.0)


async def _turns(*speedups: float) -> tuple[list[object], list[float | None]]:
    found, _ = await search(sampler=Growing(*speedups), judge=Honest(), turns=len(speedups))
    return list(found.chains[0].turns), found.chains[0].rewards


class Dying(ScriptedSampler):
    """Fails for good after a number of completions."""

    def __init__(self, completions: int) -> None:
        super().__init__(by_seed)
        self._left = completions

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        self._left -= 1
        if self._left < 0:
            raise NoSampler
        return await super().sample(prompt, sampling)


@pytest.mark.parametrize("strategy", ["context", "vanilla"])
async def test_a_search_that_was_stopped_at_any_turn_goes_on_to_the_same_history(store: Store, strategy: str) -> None:
    config = ScalingConfig(strategy=strategy, window=2, limits=Limits(tokens=60_000))  # type: ignore[arg-type]
    whole, _ = await search(config, turns=6, width=2)
    for stop in range(4):
        with pytest.raises(NoSampler):
            await search(config, Dying(stop), store=store, turns=6, width=2)
    judge = FakeJudge()
    resumed, steps = await search(config, judge=judge, store=store, turns=6, width=2)
    assert [chain.turns for chain in resumed.chains] == [chain.turns for chain in whole.chains]
    assert [chain.rewards for chain in resumed.chains] == [chain.rewards for chain in whole.chains]
    assert 0 < len(judge.asked) < sum(turn.kernel is not None for chain in whole.chains for turn in chain.turns)
    assert {step.resumed for step in steps} == {True, False}


async def test_what_was_spent_before_a_stop_counts(store: Store) -> None:
    with pytest.raises(NoSampler):
        await search(sampler=Dying(3), store=store)
    first = store.open_trajectory("r", SOFTMAX.hash, 1).turns
    spent = sum(len(turn.prompt_ids) + len(turn.output_ids) for turn in first)
    found, _ = await search(ScalingConfig(limits=Limits(tokens=spent + 1)), store=store)
    assert (found.chains[0].stopped, len(found.chains[0].turns)) == ("tokens", 3)


def test_tokens_that_an_engine_keeps_are_estimated() -> None:
    sampler = ScriptedSampler([answer("x = 1")])
    found, _ = asyncio.run(search(sampler=sampler, turns=1))
    turn = found.chains[0].turns[0]
    assert tokens_of(turn, sampler) == Tokens(len(turn.prompt_ids), len(turn.output_ids))
    kept = turn.model_copy(update={"prompt_ids": (), "output_ids": (), "logprobs": ()})
    assert tokens_of(kept, sampler).prompt == len(turn.prompt_ids)
    assert tokens_of(kept, sampler).completion >= len(turn.output_ids)
