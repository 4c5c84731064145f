"""A run that was stopped goes on as if it never had been; what fails around it is no kernel's fault."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from drkernel_q import record
from drkernel_q.errors import BadSettings, NoSampler
from drkernel_q.lesson import Lesson
from drkernel_q.problem import Problem, find_problems
from drkernel_q.settings import load_settings
from drkernel_q.store import Store
from policy.rollouts.phase import Phases
from policy.sampler.scripted import ScriptedSampler
from policy.training import checkpoint
from policy.training.learner import Learner
from policy.training.recipe import TrainConfig
from policy.training.step import Report
from policy.training.train import assemble
from policy.training.trainer import Summary, Trainer, Watch
from tests.training import Facts, a_config, a_model, answer

#: The script knows nothing of the weights, so its log-probabilities are not theirs.
SCRIPTED = {"mismatch": {"enabled": False}}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return find_problems(("softmax", "gelu", "matmul"), load_settings())


class Run:
    """A run in a folder and a store of its own, with a script in place of a model's answers and facts of thin air."""

    def __init__(self, folder: Path, problems: list[Problem], judge: Facts | None = None, **changes: Any) -> None:
        self.folder = folder / "run"
        self.problems = problems
        self.config: TrainConfig = a_config(**SCRIPTED | changes)
        self.judge = judge or Facts()
        self.reports: list[Report] = []
        self.watch: Watch = self.reports.append
        self.sampler = ScriptedSampler(answer)

    @contextlib.asynccontextmanager
    async def trainer(self) -> AsyncIterator[Trainer]:
        learner = Learner(a_model(), self.config, Accelerator(cpu=True))
        with Store.open(f"sqlite:///{self.folder.parent / 'store.sqlite'}") as store:
            store.upgrade()
            yield assemble(
                self.config,
                self.folder,
                self.problems,
                learner=learner,
                sampler=self.sampler,
                judge=self.judge,
                store=store,
                phases=Phases(shared=self.config.shared_device),
                watch=self.watch,
            )

    def go(self, *, resume: bool = False) -> Summary:
        async def train() -> Summary:
            async with self.trainer() as trainer:
                return await trainer.run(resume=resume)

        return asyncio.run(train())

    def lessons(self) -> list[Lesson]:
        with Store.open(f"sqlite:///{self.folder.parent / 'store.sqlite'}") as store:
            return store.lessons("run")

    def weights(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        found = checkpoint.latest(self.folder / "checkpoints")
        assert found is not None
        return load_file(found.folder / "model.safetensors")

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of the run without times, which are never the same twice."""
        lines = record.read(self.folder / record.FILE)
        return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def same(first: Run, second: Run) -> None:
    assert first.lessons() == second.lessons()
    assert first.metrics() == second.metrics()
    mine, theirs = first.weights(), second.weights()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, problems: list[Problem]) -> Run:
    """Four steps without an interruption."""
    run = Run(tmp_path_factory.mktemp("whole"), problems)
    assert run.go() == Summary(4, stopped=False)
    return run


@pytest.mark.slow
def test_a_run_learns_and_writes_everything_down(whole: Run) -> None:
    lines = whole.metrics()
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    last = lines[-1]
    for name in (
        "reward/mean",
        "policy/grad_norm",
        "policy/entropy",
        "mrs/ppl_sampler",
        "mrs/ppl_train",
        "staleness/max",
    ):
        assert last[name] is not None, name
    assert last["staleness/max"] == 0
    assert last["rows/learned"] > 0
    assert {lesson.step for lesson in whole.lessons()} == {1, 2, 3, 4}
    assert len(whole.lessons()) == 4 * 2 * 3 * 2
    assert [report.step for report in whole.reports] == [1, 2, 3, 4]
    kept = sorted(path.name for path in (whole.folder / "checkpoints").iterdir())
    assert kept == ["step_000002", "step_000004"]


def test_every_turn_was_written_by_the_version_before_its_step(whole: Run) -> None:
    for report in whole.reports:
        versions = {
            turn.policy_version
            for rolled in report.groups
            for trajectory in rolled.group.trajectories
            for turn in trajectory.turns
        }
        assert versions == {report.step - 1}


@pytest.mark.slow
def test_two_calls_are_one_run(tmp_path: Path, problems: list[Problem], whole: Run) -> None:
    run = Run(tmp_path, problems, steps=3)
    assert run.go() == Summary(3, stopped=False)
    run.config = a_config(**SCRIPTED)
    assert run.go(resume=True) == Summary(4, stopped=False)
    same(run, whole)


@pytest.mark.slow
def test_what_was_sampled_before_a_kill_is_not_sampled_again(
    tmp_path: Path, problems: list[Problem], whole: Run
) -> None:
    """The process goes away in its fourth step: some turns are stored, the checkpoint is that of step 2."""
    run = Run(tmp_path, problems)
    judged = 0

    class Dying(Facts):
        async def evaluate(self, problem: Problem, kernel: Any) -> Any:
            nonlocal judged
            judged += 1
            if judged == 40:
                raise NoSampler("killed")
            return await super().evaluate(problem, kernel)

    run.judge = Dying()
    with pytest.raises(NoSampler):
        run.go()
    # As after a kill, which nothing can save in.
    for path in (run.folder / "checkpoints").glob("step_000003"):
        (path / "manifest.json").unlink()
    run.judge = Facts()
    assert run.go(resume=True) == Summary(4, stopped=False)
    same(run, whole)
    assert len(run.judge.asked) < 12


@pytest.mark.slow
def test_sigterm_saves_and_the_run_goes_on(tmp_path: Path, problems: list[Problem], whole: Run) -> None:
    run = Run(tmp_path, problems, checkpoint={"every_steps": 100})

    class Stopping(Facts):
        async def evaluate(self, problem: Problem, kernel: Any) -> Any:
            found = await super().evaluate(problem, kernel)
            if len(self.asked) == 14:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(30)
            return found

    run.judge = Stopping()
    assert run.go() == Summary(1, stopped=True)
    found = checkpoint.latest(run.folder / "checkpoints")
    assert found is not None
    assert (found.manifest.step, found.manifest.cursor, found.manifest.policy_version) == (1, 2, 1)
    run.judge = Facts()
    assert run.go(resume=True) == Summary(4, stopped=False)
    same(run, whole)


#: Rollouts ahead of learning, on devices of their own.
AHEAD = {"staleness": 1, "shared_device": False}


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory, problems: list[Problem]) -> Run:
    """Four steps, each but the first with rollouts that were made while the one before was learned from."""
    run = Run(tmp_path_factory.mktemp("ahead"), problems, **AHEAD)
    assert run.go() == Summary(4, stopped=False)
    return run


def written_by(report: Report) -> set[int | None]:
    rows = [row for rolled in report.groups for row in rolled.group.trajectories]
    return {turn.policy_version for trajectory in rows for turn in trajectory.turns}


def test_a_step_ahead_is_written_by_the_weights_of_before_and_judged_meanwhile(ahead: Run, whole: Run) -> None:
    assert [written_by(report) for report in ahead.reports] == [{0}, {0}, {1}, {2}]
    assert [line["staleness/max"] for line in ahead.metrics()] == [0, 1, 1, 1]
    learned = [lesson.model_copy(update={"mean_log_ratio": None}) for lesson in whole.lessons()]
    assert [lesson.model_copy(update={"mean_log_ratio": None}) for lesson in ahead.lessons()] == learned
    assert sorted(ahead.judge.asked) == sorted(whole.judge.asked)


def test_the_next_step_is_judged_before_this_one_is_done(tmp_path: Path, problems: list[Problem]) -> None:
    run = Run(tmp_path, problems, steps=2, **AHEAD)
    asked: list[int] = []
    run.watch = lambda _: asked.append(len(run.judge.asked))
    assert run.go() == Summary(2, stopped=False)
    assert asked == [len(run.judge.asked)] * 2
    assert asked[0] > 2 * 3 * 2


def test_a_step_ahead_needs_devices_of_its_own() -> None:
    with pytest.raises(ValueError, match="shared_device = false"):
        a_config(staleness=1)


@pytest.mark.slow
def test_a_run_ahead_that_was_stopped_learns_the_same(tmp_path: Path, problems: list[Problem], ahead: Run) -> None:
    run = Run(tmp_path, problems, **AHEAD)

    class Stopping(Facts):
        async def evaluate(self, problem: Problem, kernel: Any) -> Any:
            found = await super().evaluate(problem, kernel)
            if len(self.asked) == 30:  # in the third step, while the second is learned from
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(30)
            return found

    run.judge = Stopping()
    assert run.go() == Summary(2, stopped=True)
    run.judge = Facts()
    assert run.go(resume=True) == Summary(4, stopped=False)
    assert run.lessons() == ahead.lessons()
    mine, theirs = run.weights(), ahead.weights()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_rollouts_ahead_that_fail_end_the_run_after_the_step(tmp_path: Path, problems: list[Problem]) -> None:
    run = Run(tmp_path, problems, **AHEAD)

    class Dying(Facts):
        async def evaluate(self, problem: Problem, kernel: Any) -> Any:
            if len(self.asked) >= 14:
                raise NoSampler("killed")
            return await super().evaluate(problem, kernel)

    run.judge = Dying()
    with pytest.raises(NoSampler):
        run.go()
    found = checkpoint.latest(run.folder / "checkpoints")
    assert found is not None
    assert found.manifest.step == 1


def test_another_configuration_is_refused_by_name(tmp_path: Path, problems: list[Problem]) -> None:
    run = Run(tmp_path, problems, steps=1)
    run.go()
    run.config = a_config(**SCRIPTED | {"optimizer": {"learning_rate": 0.5}, "steps": 2})
    with pytest.raises(BadSettings, match=r"optimizer.learning_rate was 0.001 and is 0.5"):
        run.go(resume=True)
    assert checkpoint.latest(run.folder / "checkpoints") is not None


def test_nothing_to_resume_is_a_beginning(tmp_path: Path, problems: list[Problem]) -> None:
    assert Run(tmp_path, problems, steps=1).go(resume=True) == Summary(1, stopped=False)


def test_lost_evaluations_are_no_rewards_and_leave_the_others_alone(tmp_path: Path, problems: list[Problem]) -> None:
    run = Run(tmp_path, problems, Facts(failing=0.1), steps=2)
    run.go()
    lost = {
        (rolled.group.problem_hash, number, turn.number)
        for report in run.reports
        for rolled in report.groups
        for number, trajectory in enumerate(rolled.group.trajectories, start=rolled.order.first)
        for turn in trajectory.turns
        if turn.kernel is not None and turn.evaluation is None
    }
    assert lost
    for lesson in run.lessons():
        if (lesson.problem_hash, lesson.trajectory, lesson.turn) in lost:
            assert lesson.reward is None
            assert lesson.turn_return is None
            assert lesson.advantage is None
            assert not lesson.is_learned
        else:
            assert lesson.reward is not None
    assert run.metrics()[0]["rows/admitted"] < run.metrics()[0]["rows/turns"]
    assert any(line["rate/infrastructure"] > 0 for line in run.metrics())
