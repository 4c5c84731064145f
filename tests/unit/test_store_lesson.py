"""Lessons come back as they went in, one a turn, and only about turns that are there."""

import pytest
from pydantic import ValidationError

from drkernel_q.errors import BadInput
from drkernel_q.lesson import Lesson
from drkernel_q.store import Store
from drkernel_q.store.query import ask
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.values import MATMUL, SOFTMAX


def a_trajectory(problem_hash: str, turns: int = 2) -> Trajectory:
    prompt = (Message(role="user", content="make it fast"),)
    return Trajectory(
        problem_hash=problem_hash,
        turns=tuple(Turn(number=number, prompt=prompt, completion="...") for number in range(1, turns + 1)),
    )


def a_lesson(turn: int = 1, **changes: object) -> Lesson:
    return Lesson.model_validate({"problem_hash": SOFTMAX.hash, "trajectory": 1, "turn": turn, "step": 1} | changes)


@pytest.fixture
def filled(store: Store) -> Store:
    for problem in (SOFTMAX, MATMUL):
        store.add_problem(problem)
        store.add_trajectory("run", a_trajectory(problem.hash))
        store.add_trajectory("other", a_trajectory(problem.hash))
    return store


def test_lessons_come_back(filled: Store) -> None:
    whole = a_lesson(
        reward=1.5,
        turn_return=2.5,
        advantage=-0.25,
        mismatch="veto",
        mean_log_ratio=1e-5,
        keep_probability=0.125,
        draw=0.75,
        lazy=True,
    )
    failed = a_lesson(2)
    other = a_lesson(problem_hash=MATMUL.hash, step=2, mismatch="kept")
    filled.add_lessons("run", [whole, failed])
    filled.add_lessons("run", [other])
    assert filled.lessons("run") == [whole, failed, other]
    assert filled.lessons("run", step=2) == [other]
    assert filled.lessons("other") == []


def test_a_later_lesson_takes_the_place_of_an_earlier_one(filled: Store) -> None:
    filled.add_lessons("run", [a_lesson(), a_lesson(2)])
    filled.add_lessons("run", [a_lesson(reward=1.0)])
    assert filled.lessons("run") == [a_lesson(reward=1.0), a_lesson(2)]


def test_steps_are_asked_for_by_name(filled: Store) -> None:
    lost = a_lesson(2, mismatch="kept")
    learned = a_lesson(reward=3.0, advantage=1.0, mismatch="kept", keep_probability=1.0, draw=0.5)
    lazy = a_lesson(
        problem_hash=MATMUL.hash, reward=1.0, advantage=1.0, mismatch="kept", keep_probability=0.1, draw=0.5, lazy=True
    )
    vetoed = a_lesson(2, problem_hash=MATMUL.hash, step=2, reward=0.0, advantage=0.0, mismatch="veto")
    filled.add_lessons("run", [lost, learned, lazy, vetoed])
    with ask(filled, "lessons", {"run": "run"}) as answer:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    first = {"step": 1, "turns": 3, "rewarded": 2, "reward": 2.0, "matched": 3, "drawn": 2, "lazy": 1, "learned": 1}
    second = {"step": 2, "turns": 1, "rewarded": 1, "reward": 0.0, "matched": 0, "drawn": 0, "lazy": 0, "learned": 0}
    assert rows == [first, second]


def test_no_lessons_are_no_statement(filled: Store) -> None:
    filled.add_lessons("run", [])
    assert filled.lessons("run") == []


@pytest.mark.parametrize("stray", [{"turn": 3}, {"trajectory": 2}, {"problem_hash": "b2:0"}])
def test_a_turn_that_is_not_there(filled: Store, stray: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="is not in the run `run`"):
        filled.add_lessons("run", [a_lesson(), a_lesson(**stray)])
    assert filled.lessons("run") == []


def test_what_is_learned_from() -> None:
    assert a_lesson(advantage=0.0).is_learned
    assert a_lesson(advantage=0.0, mismatch="kept").is_learned
    assert not a_lesson().is_learned
    assert not a_lesson(advantage=1.0, mismatch="band").is_learned
    assert not a_lesson(advantage=1.0, lazy=True).is_learned


def test_a_reason_that_is_none() -> None:
    with pytest.raises(ValidationError):
        a_lesson(mismatch="because")
