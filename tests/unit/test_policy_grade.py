"""Grades: fixed denominators, parts of a suite, degenerate problems apart, and the article's rows beside ours."""

import pytest

from drkernel_q.evaluation import Baseline, Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.trajectory import Group, Trajectory, Turn
from policy.cli import layout
from policy.grading.grade import Grade, Graded, grades
from policy.grading.published import LEVELS, published
from tests.values import an_audit, an_evaluation


def graded(name: str, *samples: list[Evaluation | None], degenerate: bool | None = None) -> Graded:
    problem = Problem(name=name, source=f"class Model: '''{name}'''")
    trajectories = [
        Trajectory(
            problem_hash=problem.hash,
            turns=tuple(
                Turn(number=number, prompt=(), completion="", kernel=Kernel(source=f"{number}"), evaluation=each)
                for number, each in enumerate(turns, start=1)
            ),
        )
        for turns in samples
    ]
    audits = {} if degenerate is None else {"sm_90/NVIDIA H200": an_audit(zeros_pass=degenerate)}
    return Graded(problem, Group(problem_hash=problem.hash, trajectories=tuple(trajectories)), audits)


def timed(speedup: float, ratio: float = 0.9) -> Evaluation:
    return an_evaluation(speedup=speedup, profile_ratio=ratio)


WRONG = an_evaluation("wrong_value")
SUITE = [
    graded("1/1_A", [timed(1.3), WRONG], [timed(1.6), timed(1.1, 0.1)]),
    graded("1/2_B", [an_evaluation("correct", "rejected"), None]),
    graded("2/1_C"),
]


def grade(found: list[Grade], part: str, pick: str = "last", *, sound_only: bool = False) -> Grade:
    (one,) = (each for each in found if (each.part, each.pick, each.sound_only) == (part, pick, sound_only))
    return one


def test_what_is_missing_is_a_failure() -> None:
    """By hand, for level 1: of two problems with two planned samples each, one last turn is right and 1.1x."""
    found = grades(SUITE, samples=2, turns=2, baselines=[Baseline.EAGER], draws=50)
    last = grade(found, "level 1")
    assert (last.problems, last.samples, last.correct.value) == (2, 2, 0.25)
    assert {p: share.value for p, share in last.fast.items()} == {"1": 0.25, "1.2": 0.0, "1.5": 0.0, "2": 0.0}
    best = grade(found, "level 1", "best")
    assert {p: share.value for p, share in best.fast.items()} == {"1": 0.5, "1.2": 0.5, "1.5": 0.25, "2": 0.0}
    assert {k: share.value for k, share in last.passes.items()} == {"1": 0.25, "2": 0.5}
    assert last.hack_rate is not None
    assert last.hack_rate.value == pytest.approx(1 / 5)
    assert last.lazy_rate is not None
    assert last.lazy_rate.value == pytest.approx(1 / 3)
    nothing = grade(found, "level 2")
    assert (nothing.problems, nothing.correct.value, nothing.hack_rate) == (1, 0.0, None)


def test_the_best_of_one_turn_is_the_last() -> None:
    found = grades(SUITE, samples=2, turns=1, baselines=[Baseline.EAGER, Baseline.COMPILE], draws=10)
    assert {(each.pick, each.baseline) for each in found} == {("last", Baseline.EAGER), ("last", Baseline.COMPILE)}
    compiled = next(each for each in found if each.baseline is Baseline.COMPILE and each.part == "level 1")
    assert (compiled.correct.value, compiled.fast["1"].value) == (0.25, 0.0)


def test_degenerate_problems_stand_apart() -> None:
    suite = [graded("a", [timed(1.5)], degenerate=False), graded("b", [timed(9.0)], degenerate=True)]
    found = grades(suite, samples=1, turns=1, baselines=[Baseline.EAGER], draws=10)
    every, sound = grade(found, "others"), grade(found, "others", sound_only=True)
    assert (every.problems, every.correct.value, every.fast["1"].value) == (2, 1.0, 0.5)
    assert (sound.problems, sound.fast["1"].value) == (1, 1.0)


def test_intervals_hold_their_values_and_come_again() -> None:
    first = grades(SUITE, samples=2, turns=2, baselines=[Baseline.EAGER], draws=100)
    assert first == grades(SUITE, samples=2, turns=2, baselines=[Baseline.EAGER], draws=100)
    for each in first:
        for share in (each.correct, *each.fast.values(), *each.passes.values()):
            assert 0 <= share.low <= share.value <= share.high <= 1


@pytest.mark.parametrize("baseline", [Baseline.EAGER, Baseline.COMPILE])
def test_published_rows_are_shares_that_decline(baseline: Baseline) -> None:
    rows = published(baseline)
    assert len(rows) == {Baseline.EAGER: 13, Baseline.COMPILE: 4}[baseline]
    for row in rows:
        for level in LEVELS:
            shares = [share for (each, _), share in sorted(row.shares.items()) if each == level]
            assert all(0 <= share <= 1 for share in shares)
            odd = (row.model, baseline, level) == ("DR.KERNEL-8B", Baseline.COMPILE, 1)
            assert (shares == sorted(shares, reverse=True)) != odd
    assert published(Baseline.MAX_AUTOTUNE) == []


def test_layouts() -> None:
    found = grades(SUITE, samples=2, turns=2, baselines=[Baseline.EAGER], draws=20)
    text = layout.markdown("mine", found, compared=True)
    assert "| mine† | level 1 | 2 | 2 | 50.0 [" in text
    assert "| GPT-5 (published) | level 2 |  |  |  | 46.7 | 28.6 | 13.1 | 3.0 |" in text
    assert "level 3" not in text
    assert "published" not in layout.markdown("mine", found, compared=False)
    tex = layout.latex("a_model", found, compared=True)
    assert r"a\_model$^\dagger$ & level 1 & 2 & 2 & 50.0 [" in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 1
    columns, rows = layout.rows("mine", found)
    assert all(len(row) == len(columns) for row in rows)
    first = dict(zip(columns, rows[0], strict=True))
    assert (first["part"], first["pick"], first["fast_1"], first["hack_rate_low"]) == ("level 1", "last", 0.25, 0.0)
