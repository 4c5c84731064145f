"""Bench: kernels find their problems, nothing about one problem stops the others, and a killed run goes on."""

from pathlib import Path

import pytest

from drkernel_q.errors import BadKernelFile, BadProblem
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from drkernel_q.trajectory import Group
from policy.grading.bench import collected, kernel_files, sampled
from policy.sampler.scripted import ScriptedSampler
from tests.rollouts import FakeJudge, a_rollout, answer, by_seed
from tests.values import MATMUL, SOFTMAX

NUMBERED = Problem(name="1/23_Softmax", source="class Model: '''23'''")


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("softmax.py", SOFTMAX),
        ("softmax-2.py", SOFTMAX),
        ("deep/softmax.py", SOFTMAX),
        ("1_23_Softmax.py", NUMBERED),
        ("1_23_mine.py", NUMBERED),
        ("level_1_problem_23_sample_0_kernel.py", NUMBERED),
        ("1_2_other.py", None),
        ("other.py", None),
    ],
)
def test_kernels_find_their_problems(tmp_path: Path, file: str, problem: Problem | None) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    found = kernel_files(tmp_path, [SOFTMAX, NUMBERED])
    assert found == {each.hash: [path] if each is problem else [] for each in (SOFTMAX, NUMBERED)}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadKernelFile, match="no folder of kernels"):
        kernel_files(tmp_path / "nothing", [SOFTMAX])


class Picky(FakeJudge):
    """Cannot use one problem, and cannot judge one kernel."""

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        if problem == MATMUL:
            raise BadProblem("Model of matmul raises MemoryError.")
        if "unlucky" in kernel.source:
            self.asked.append(kernel.source)
            return None
        return await super().evaluate(problem, kernel)


async def collect(folder: Path, judge: FakeJudge, store: Store, said: list[str]) -> dict[str, Group]:
    problems = [SOFTMAX, MATMUL, NUMBERED]
    rollout = a_rollout(judge=judge, store=store, turns=1, group_size=2)
    arriving = collected(problems, kernel_files(folder, problems), rollout, said.append)
    return {problem.name: group async for problem, group in arriving}


async def test_nothing_about_one_problem_stops_the_others(tmp_path: Path, store: Store) -> None:
    for name, text in {
        "softmax.py": b"x = 1",
        "softmax-2.py": b"\xff",
        "softmax-3.py": b"too many",
        "matmul.py": b"y",
        "1_23_a.py": b"unlucky",
    }.items():
        (tmp_path / name).write_bytes(text)
    judge, said = Picky(), list[str]()
    groups = await collect(tmp_path, judge, store, said)
    evaluated = {
        name: [[turn.evaluation is not None for turn in each.turns] for each in group.trajectories]
        for name, group in groups.items()
    }
    assert evaluated == {"softmax": [[True], []], "matmul": [[]], "1/23_Softmax": [[False]]}
    assert sorted(each.partition(":")[0] for each in said) == ["matmul", "softmax"]
    assert judge.asked == ["x = 1", "unlucky"]

    again = Picky()
    assert await collect(tmp_path, again, store, said) == groups
    assert again.asked == ["unlucky"], "what was judged is not judged again, what could not be is"


async def test_a_model_is_sampled_for_every_problem_that_can_be_used(store: Store) -> None:
    rollout = a_rollout(ScriptedSampler([answer("x = 1")]), Picky(), store, turns=2, group_size=3)
    found = {problem.name: group async for problem, group in sampled([SOFTMAX, MATMUL], rollout)}
    assert list(found) == ["softmax"]
    assert [len(each.turns) for each in found["softmax"].trajectories] == [2, 2, 2]


async def test_a_bench_that_goes_on_is_the_same(store: Store) -> None:
    rollout = a_rollout(ScriptedSampler(by_seed), FakeJudge(), store, turns=2, group_size=3)
    first = [group async for _, group in sampled([SOFTMAX], rollout)]
    judge = FakeJudge()
    again = a_rollout(ScriptedSampler(by_seed), judge, store, turns=2, group_size=3)
    assert [group async for _, group in sampled([SOFTMAX], again)] == first
    assert judge.asked == []
