"""What a step's numbers are, and that they are written down whatever comes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from drkernel_q import record
from drkernel_q.errors import MissingExtra
from drkernel_q.kernel import Kernel
from drkernel_q.lesson import Lesson
from drkernel_q.trajectory import Group, Trajectory, Turn
from policy.training.telemetry import lesson_metrics, rollout_metrics, staleness_metrics
from policy.training.tracking import TRACKERS, Tracking, check_trackers
from tests.values import SOFTMAX, an_evaluation


def a_turn(number: int, evaluation: object = None, *, kernel: bool = True, **more: Any) -> Turn:
    made = Kernel(source="k") if kernel else None
    values = {"prompt": (), "completion": "", "kernel": made, "evaluation": evaluation, "finish_reason": "stop"}
    return Turn.model_validate(values | {"number": number} | more)


def a_group(*trajectories: tuple[Turn, ...]) -> Group:
    made = [Trajectory(problem_hash=SOFTMAX.hash, turns=turns) for turns in trajectories]
    return Group(problem_hash=SOFTMAX.hash, trajectories=tuple(made))


def a_lesson(turn: int, trajectory: int = 1, **more: Any) -> Lesson:
    values = {"problem_hash": SOFTMAX.hash, "trajectory": trajectory, "turn": turn, "step": 1}
    return Lesson.model_validate(values | more)


def test_rates_have_denominators_that_say_what_they_are() -> None:
    fast = an_evaluation(speedup=1.5, profile_ratio=0.9)
    lazy = an_evaluation(speedup=1.1, profile_ratio=0.1)
    group = a_group(
        (a_turn(1, an_evaluation("wrong_value")), a_turn(2, fast)),
        (a_turn(1, lazy), a_turn(2)),  # the second was lost with its device
        (a_turn(1, kernel=False), a_turn(2, an_evaluation(integrity="rejected"), finish_reason="length")),
        (a_turn(1, kernel=False),),  # and ended early
    )
    found = rollout_metrics([group], turns=2, samples=4, lazy_below=0.3)
    assert found["fast_1/turn_1"] == found["fast_1/turn_2"] == 0.25
    assert found["fast_1.2/turn_1"] == 0
    assert found["fast_1.2/turn_2"] == 0.25
    assert found["fast_1/best_of_2"] == 0.5
    assert found["rate/without_kernel"] == 2 / 7
    assert found["rate/infrastructure"] == 1 / 5
    assert found["rate/hack"] == 1 / 4
    assert found["rate/lazy"] == 1 / 2
    assert found["rate/truncated"] == 1 / 7
    assert found["pr/mean"] == 0.5
    assert found["pr/hackable"] == 0.5  # padding pays where PR < 1/2
    assert found["speedup/median"] == pytest.approx(1.3)


def test_a_step_without_anything_has_no_shares() -> None:
    found = rollout_metrics([], turns=1, samples=4, lazy_below=0.3)
    assert all(math.isfinite(value) for value in found.values())
    assert "rate/hack" not in found
    assert lesson_metrics([], groups=0) == {"rows/turns": 0, "rows/admitted": 0, "rows/learned": 0}


def test_an_infrastructure_failure_is_in_no_mean_of_rewards() -> None:
    lessons = [a_lesson(1, reward=3.0, advantage=1.0), a_lesson(1, 2), a_lesson(2, reward=1.0, advantage=0.5)]
    found = lesson_metrics(lessons, groups=2)
    assert found["reward/mean"] == 2.0
    assert found["reward/turn_1"] == 3.0
    assert found["rows/turns"] == 3
    assert found["rows/admitted"] == 2
    assert found["reward/groups_without_variance"] == 0.5


def test_draws_are_counted_where_there_were_any() -> None:
    lessons = [a_lesson(1, keep_probability=0.25, draw=0.5, lazy=True, advantage=1.0, reward=1.0)]
    lessons += [a_lesson(2, keep_probability=0.75, draw=0.5, advantage=1.0, reward=1.0), a_lesson(3)]
    found = lesson_metrics(lessons, groups=1)
    assert found["prs/acceptance"] == 0.5
    assert found["prs/probability"] == 0.5
    assert found["rows/learned"] == 1


def test_staleness_is_in_versions() -> None:
    group = a_group((a_turn(1, policy_version=3), a_turn(2, policy_version=5)), (a_turn(1),))
    assert staleness_metrics([group], 5) == {"staleness/mean": 1.0, "staleness/max": 2.0}
    assert staleness_metrics([], 5) == {}


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None) -> None:
        self.calls.append((project_name, config))

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.calls.append((step, values))

    def finish(self) -> None:
        self.calls.append("end")

    @property
    def trackers(self) -> list[Any]:
        return [self]


def test_lines_outlive_a_resume_and_trackers_get_what_is_finite(tmp_path: Path) -> None:
    recorder = Recorder()
    kept = Tracking(tmp_path, recorder, run="r", config={"a": {"b": (1, 2), "c": None}, "d": 1e-6})
    for step in (1, 2, 3):
        kept.log(step, {"reward/mean": float(step), "bad": math.nan})
    with (tmp_path / record.FILE).open("a") as file:
        file.write('{"step": 4, "rew')  # killed while writing
    again = Tracking(tmp_path, None, run="r", config={})
    again.forget_after(2)
    again.log(3, {"reward/mean": 7.0})
    lines = record.read(tmp_path / record.FILE)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0] == {"step": 1, "reward/mean": 1.0, "bad": None}
    assert lines[2]["reward/mean"] == 7.0
    kept.close()
    assert recorder.calls[0] == ("r", {"a.b": "[1, 2]", "a.c": "null", "d": 1e-6})
    assert recorder.calls[1] == (1, {"reward/mean": 1.0})
    assert recorder.calls[-1] == "end"


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trackers(("tensorboard",))
    monkeypatch.setitem(TRACKERS, "wandb", "no_such_package_at_all")
    with pytest.raises(MissingExtra, match="no_such_package_at_all"):
        check_trackers(("tensorboard", "wandb"))


def test_every_line_is_json(tmp_path: Path) -> None:
    kept = Tracking(tmp_path, None, run="r", config={})
    kept.log(1, {"x": math.inf})
    assert json.loads((tmp_path / record.FILE).read_text()) == {"step": 1, "x": None}
