"""Rollouts: what the model sees, what is kept, what may overlap, and that a killed run goes on where it was."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from drkernel_q.errors import BadProblem, BadSettings, NoSampler, PromptTooLong
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.prompt import feedback_turn, first_turn
from drkernel_q.store import Store
from drkernel_q.trajectory import Trajectory
from policy.rollouts.rollout import GroupOrder, Rollout, rollout_groups, rollout_trajectory, turn_seed
from policy.sampler.protocol import Prompt, Sample, Sampling
from policy.sampler.scripted import END, LOGPROB, ScriptedSampler
from tests.need import PATIENT_S, ROOT
from tests.rollouts import FakeJudge, a_rollout, answer, by_seed
from tests.values import MATMUL, SOFTMAX


async def groups(rollout: Rollout, *problems: Problem, first: int = 1) -> list[tuple[str, tuple[Trajectory, ...]]]:
    orders = [GroupOrder(problem, first) for problem in problems]
    found = [(each.order.problem.name, each.group.trajectories) async for each in rollout_groups(orders, rollout)]
    return sorted(found, key=lambda pair: pair[0])


async def test_a_turn_sees_all_that_came_before() -> None:
    rollout = a_rollout(ScriptedSampler([answer("x = 1"), "nothing", answer("x = 3")]))
    first, second, third = (await rollout_trajectory(SOFTMAX, 1, rollout)).turns
    assert first.prompt == first_turn(SOFTMAX, rollout.templates)
    for before, after in [(first, second), (second, third)]:
        said, told = after.prompt[len(before.prompt) :]
        assert after.prompt[: len(before.prompt)] == before.prompt
        assert (said.role, said.content) == ("assistant", before.completion)
        assert told == feedback_turn(before, rollout.templates)
    assert [turn.kernel is not None for turn in (first, second, third)] == [True, False, True]
    assert [turn.evaluation is not None for turn in (first, second, third)] == [True, False, True]


async def test_a_turn_keeps_what_the_engine_gave() -> None:
    sampler = ScriptedSampler([answer("x = 1")])
    sampler.policy_version = 12
    turn = (await rollout_trajectory(SOFTMAX, 1, a_rollout(sampler))).turns[0]
    assert turn.prompt_ids == sampler.encode(turn.prompt).ids
    assert bytes(turn.output_ids[:-1]).decode() == turn.completion
    assert turn.output_ids[-1] == END
    assert turn.logprobs == (LOGPROB,) * len(turn.output_ids)
    assert (turn.finish_reason, turn.policy_version) == ("stop", 12)


async def test_an_answer_that_is_cut_is_a_turn() -> None:
    rollout = a_rollout(ScriptedSampler(["class ModelNew:\n" + "    # and so on\n" * 100]))
    turn = (await rollout_trajectory(SOFTMAX, 1, rollout)).turns[0]
    assert (turn.finish_reason, len(turn.output_ids), turn.output_ids[-1] == END) == ("length", 400, False)


async def test_a_turn_that_would_not_fit_ends_the_trajectory() -> None:
    sampler = ScriptedSampler([answer("x = 1")])
    whole = (await rollout_trajectory(SOFTMAX, 1, a_rollout(sampler))).turns
    room = len(whole[1].prompt_ids) + 400
    for context, turns in [(room, 2), (room - 1, 1)]:
        cut = await rollout_trajectory(SOFTMAX, 1, a_rollout(sampler, context_tokens=context))
        assert cut.turns == whole[:turns]
    with pytest.raises(PromptTooLong, match="softmax and 400 tokens"):
        await rollout_trajectory(SOFTMAX, 1, a_rollout(sampler, context_tokens=400))


async def test_facts_that_could_not_be_had_are_no_facts_and_the_model_is_told_so() -> None:
    turns = (
        await rollout_trajectory(SOFTMAX, 1, a_rollout(ScriptedSampler([answer("x = 1")]), FakeJudge(failing=True)))
    ).turns
    assert [(turn.kernel is not None, turn.evaluation) for turn in turns] == [(True, None)] * 3
    assert "Not run" in turns[1].prompt[-1].content


def test_seeds_are_those_of_the_place() -> None:
    places = [
        (seed, name, i, t) for seed in (0, 1) for name in ("b2:a", "b2:b") for i in range(1, 20) for t in (1, 2, 3)
    ]
    seeds = {turn_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert turn_seed(0, "b2:a", 1, 1) == 1602254108120019076  # a stored run is resumed by these


async def test_groups_do_not_depend_on_what_runs_beside_them(store: Store) -> None:
    alone = [(await groups(a_rollout(), problem))[0] for problem in (MATMUL, SOFTMAX)]
    narrow = a_rollout(store=store, groups_in_flight=1, tokens_in_flight=1, evaluations_in_flight=1)
    assert await groups(narrow, SOFTMAX, MATMUL) == alone
    assert await groups(a_rollout(store=store), SOFTMAX, MATMUL) == alone
    assert {len(trajectories) for _, trajectories in alone} == {4}
    assert await groups(a_rollout(store=store), SOFTMAX, first=5) != alone[1:]
    assert store.status().rows["trajectories"] == 12


async def test_stored_turns_are_not_made_again(store: Store) -> None:
    judge = FakeJudge()
    whole = await groups(a_rollout(judge=judge, store=store), SOFTMAX)
    asked = len(judge.asked)
    assert await groups(a_rollout(ScriptedSampler(_never), judge, store=store), SOFTMAX) == whole
    assert len(judge.asked) == asked
    assert tuple(store.trajectories("r")) == whole[0][1]


def _never(prompt: Prompt, sampling: Sampling) -> str:
    raise AssertionError("this was sampled before")


async def test_sampling_goes_on_while_kernels_are_judged() -> None:
    """Were there a step that waits for all, no kernel would be judged while another trajectory is at another turn."""
    seen: set[tuple[int, ...]] = set()
    turns = dict.fromkeys(range(1, 5), 0)

    class Watching(FakeJudge):
        async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
            number = int(kernel.name.split()[-1].split(".")[0])
            turns[number] += 1
            # The first trajectory is judged slowly, the others at once.
            for _ in range(200 if number == 1 else 1):
                await asyncio.sleep(0)
                seen.add(tuple(turns.values()))
            return await super().evaluate(problem, kernel)

    await groups(a_rollout(ScriptedSampler([answer("x = 1")]), Watching()), SOFTMAX)
    assert (1, 3, 3, 3) in seen


async def test_groups_come_as_they_are_completed_and_the_rest_is_cancelled() -> None:
    judge = FakeJudge()
    cancelled: list[str] = []

    class Stuck(FakeJudge):
        async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
            try:
                if problem.name == "matmul":
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(kernel.name)
                raise
            return await judge.evaluate(problem, kernel)

    iteration = rollout_groups([GroupOrder(MATMUL), GroupOrder(SOFTMAX)], a_rollout(judge=Stuck()))
    assert (await anext(iteration)).order.problem == SOFTMAX
    await iteration.aclose()
    assert cancelled


async def test_what_cannot_be_used_yields_no_group(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(FakeJudge):
        async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
            if problem == MATMUL:
                raise BadProblem("It has no inputs.")
            return await super().evaluate(problem, kernel)

    found = await groups(a_rollout(judge=Picky()), MATMUL, SOFTMAX)
    assert [name for name, _ in found] == ["softmax"]
    assert "no rollouts for matmul: It has no inputs." in caplog.text
    assert await groups(a_rollout(context_tokens=10), SOFTMAX) == []


async def test_an_engine_that_is_gone_ends_the_rollout_and_what_was_judged_is_stored(store: Store) -> None:
    class Dying(ScriptedSampler):
        left = 12

        async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
            self.left -= 1
            if self.left < 0:
                raise NoSampler
            return await super().sample(prompt, sampling)

    with pytest.raises(NoSampler):
        await groups(a_rollout(Dying(by_seed), store=store), SOFTMAX, MATMUL)
    assert 1 <= store.status().rows["turns"] <= 12
    whole = await groups(a_rollout(), MATMUL, SOFTMAX)
    assert await groups(a_rollout(store=store), MATMUL, SOFTMAX) == whole


async def test_limits_are_kept() -> None:
    """Kernels that wait are as many as allowed, and those whose completions were under way by then: here one."""
    judge = FakeJudge(latency_s=0.001)
    sampler = ScriptedSampler([answer("x = 1")])
    narrow = a_rollout(sampler, judge, tokens_in_flight=1, evaluations_in_flight=1, group_size=8)
    await groups(narrow, SOFTMAX)
    assert judge.most <= 2
    assert len(judge.asked) == 24


def test_templates_that_are_not_there_are_found_out_at_once() -> None:
    with pytest.raises(BadSettings, match="no set of templates"):
        a_rollout(templates="nowhere")


KILLED = """
import asyncio, os, signal, sys
from drkernel_q.store import Store
from policy.rollouts.rollout import GroupOrder, rollout_groups
from policy.sampler.scripted import ScriptedSampler
from tests.rollouts import a_rollout, by_seed
from tests.values import MATMUL, SOFTMAX

left = int(sys.argv[2])

def until_killed(prompt, sampling):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return by_seed(prompt, sampling)

async def main():
    with Store.open(sys.argv[1]) as store:
        rollout = a_rollout(ScriptedSampler(until_killed, latency_s=0.001), store=store)
        async for _ in rollout_groups([GroupOrder(SOFTMAX), GroupOrder(MATMUL)], rollout):
            pass

asyncio.run(main())
"""


def run_and_kill(store_url: str, after: int) -> int:
    command: Sequence[str] = [sys.executable, "-c", KILLED, store_url, str(after)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, cwd=Path("/"), env=environment, timeout=PATIENT_S).returncode


@pytest.mark.slow
async def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    with Store.open(url) as store:
        store.upgrade()
        assert [run_and_kill(url, after) for after in (9, 12)] == [-signal.SIGKILL] * 2
        assert 0 < store.status().rows["turns"] < 24
        resumed = await groups(a_rollout(store=store), SOFTMAX, MATMUL)
        assert resumed == await groups(a_rollout(), SOFTMAX, MATMUL)
        stored, made = list(store.trajectories("r")), [each for _, found in resumed for each in found]
        assert len(stored) == len(made) == 8
        assert all(trajectory in made for trajectory in stored)
        assert store.status().rows["turns"] == 24
