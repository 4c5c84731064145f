"""Metrics: denominators are fixed, estimates unbiased, intervals repeatable."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drkernel_q import metric
from drkernel_q.correctness import Correctness
from drkernel_q.evaluation import Baseline, BaselineTiming, Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.metric import Speed, Tally, fast_p, pass_at_k
from drkernel_q.observation import Evidence, Weight
from drkernel_q.trajectory import Group, Trajectory, Turn
from tests.values import an_audit, an_evaluation

SPEEDS = st.one_of(st.none(), st.floats(0, 20))
ROWS = st.lists(st.lists(SPEEDS, min_size=1, max_size=8), min_size=1, max_size=8)


def a_turn(number: int = 1, evaluation: Evaluation | None = None, *, kernel: bool = True) -> Turn:
    source = Kernel(source=f"kernel {number}") if kernel else None
    return Turn(number=number, prompt=(), completion="...", kernel=source, evaluation=evaluation)


def a_trajectory(*evaluations: Evaluation | None) -> Trajectory:
    turns = tuple(a_turn(number, evaluation) for number, evaluation in enumerate(evaluations, start=1))
    return Trajectory(problem_hash="b2:0", turns=turns)


def timed(speedup: float) -> Evaluation:
    return an_evaluation(speedup=speedup, profile_ratio=0.9)


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (None, None),
        (a_turn(kernel=False), None),
        (a_turn(), None),
        (a_turn(evaluation=an_evaluation("wrong_value", "unknown", speedup=3.0)), None),
        (a_turn(evaluation=an_evaluation("correct", "suspicious", speedup=3.0)), None),
        (a_turn(evaluation=an_evaluation()), 0.0),
        (a_turn(evaluation=timed(1.5)), 1.5),
    ],
    ids=["missing", "no kernel", "not evaluated", "wrong", "suspicious", "not timed", "timed"],
)
def test_what_a_turn_counts_with(turn: Turn | None, expected: Speed) -> None:
    assert metric.speed(turn) == expected


def test_speed_that_earns_no_reward_is_no_speed() -> None:
    unvouched = Evidence(code="G6", weight=Weight.NOTE, detail="too fast")
    turn = a_turn(evaluation=timed(30.0).model_copy(update={"evidence": (unvouched,)}))
    assert metric.speed(turn) == 0.0
    assert metric.speed(turn, audit=an_audit()) == 30.0
    assert metric.speed(turn, audit=an_audit(zeros_pass=True)) == 0.0
    less = Correctness(trials=5, passed=5, precision_class="tf32", downgraded=True)
    assert metric.speed(a_turn(evaluation=an_evaluation(speedup=2.0, correctness=less))) == 0.0


def test_each_baseline_has_a_speed_of_its_own() -> None:
    evaluation = timed(2.0)
    assert evaluation.timing is not None
    compiled = BaselineTiming(
        baseline=Baseline.COMPILE, reference_ms=0.6, speedup=1.2, speedup_low=1.1, speedup_high=1.3
    )
    timing = evaluation.timing.model_copy(update={"baselines": (*evaluation.timing.baselines, compiled)})
    turn = a_turn(evaluation=evaluation.model_copy(update={"timing": timing}))
    assert metric.speed(turn, Baseline.COMPILE) == 1.2
    assert metric.speed(turn, Baseline.MAX_AUTOTUNE) == 0.0


@given(ROWS, st.floats(0, 5), st.floats(0, 5))
def test_fast_p_is_a_share_that_declines_with_p(rows: list[list[Speed]], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= fast_p(rows, high) <= fast_p(rows, low) <= 1


@given(ROWS, st.floats(0, 5), st.integers(0, 5))
def test_a_missing_sample_never_helps(rows: list[list[Speed]], p: float, missing: int) -> None:
    fewer = [metric.padded(row, len(row) + missing) for row in rows]
    assert fast_p(fewer, p) <= fast_p(rows, p)


def test_more_samples_than_planned_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="2 samples where 1"):
        metric.padded([1.0, 2.0], 1)


def test_problems_weigh_the_same_whatever_their_samples() -> None:
    assert fast_p([[2.0, 2.0, 2.0, 2.0], [None]], 1.0) == 0.5
    assert fast_p([], 1.0) == 0.0


@given(st.lists(SPEEDS, min_size=1, max_size=7), st.data())
def test_pass_at_k_counts_every_choice(row: list[Speed], data: st.DataObject) -> None:
    """Against brute force: the share of all k-subsets that hold a pass."""
    k = data.draw(st.integers(1, len(row)))
    subsets = list(itertools.combinations(row, k))
    share = sum(any(metric.is_fast(found, 1.0) for found in subset) for subset in subsets) / len(subsets)
    assert pass_at_k([row], k, 1.0) == pytest.approx(share)


@given(ROWS)
def test_pass_at_one_is_fast_p(rows: list[list[Speed]]) -> None:
    assert pass_at_k(rows, 1, 1.2) == pytest.approx(fast_p(rows, 1.2))


def test_pass_at_more_than_there_are_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="pass@3 of 2"):
        pass_at_k([[1.0, 2.0]], 3)


def test_best_of_turns() -> None:
    trajectory = a_trajectory(timed(1.1), None, timed(2.0), timed(2.0), an_evaluation("wrong_value"))
    best = metric.best_turn(trajectory)
    assert best is not None
    assert best.number == 3
    early = metric.best_turn(trajectory, up_to=2)
    assert early is not None
    assert early.number == 1
    assert metric.best_turn(a_trajectory(None)) is None
    last = metric.last_turn(trajectory)
    assert last is not None
    assert metric.speed(last) is None


def test_fast_by_turn_keeps_its_denominator() -> None:
    """A trajectory that ended early fails the turns it never had; what was found before is not lost."""
    groups = [Group(problem_hash="b2:0", trajectories=(a_trajectory(timed(1.5)), a_trajectory(None, timed(1.3))))]
    rates = metric.fast_by_turn(groups, 1.2, turns=3)
    assert [(rate.fast, rate.best_so_far) for rate in rates] == [(0.5, 0.5), (0.5, 1.0), (0.0, 1.0)]
    planned = metric.fast_by_turn(groups, 1.2, turns=3, samples=4)
    assert [rate.best_so_far for rate in planned] == [0.25, 0.5, 0.5]


@given(st.lists(st.lists(SPEEDS, max_size=6), min_size=1, max_size=4), st.floats(0, 3))
def test_best_so_far_never_declines(rows: list[list[Speed]], p: float) -> None:
    evaluations = [[None if found is None else timed(found + 0.01) for found in row] for row in rows]
    group = Group(problem_hash="b2:0", trajectories=tuple(a_trajectory(*row) for row in evaluations))
    rates = metric.fast_by_turn([group], p, turns=6)
    bests = [rate.best_so_far for rate in rates]
    assert bests == sorted(bests)
    assert all(rate.fast <= rate.best_so_far for rate in rates)


def test_tally() -> None:
    turns = [
        a_turn(kernel=False),
        a_turn(),
        a_turn(evaluation=an_evaluation("wrong_value", "unknown")),
        a_turn(evaluation=an_evaluation("correct", "rejected")),
        a_turn(evaluation=an_evaluation(profile_ratio=0.1)),
        a_turn(evaluation=an_evaluation(profile_ratio=0.9)),
        a_turn(evaluation=an_evaluation()),
    ]
    found = metric.tally(turns)
    assert found == Tally(turns=7, without_kernel=1, unevaluated=1, correct=4, honest=3, rejected=1, lazy=1)
    assert found.hack_rate == pytest.approx(1 / 5)
    assert found.lazy_rate == pytest.approx(1 / 3)
    assert (Tally().hack_rate, Tally().lazy_rate) == (None, None)
    assert metric.tally(turns[:3]).plus(metric.tally(turns[3:])) == found


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 9))
def test_an_interval_is_repeatable_and_holds_the_values(values: list[float], seed: int) -> None:
    first = metric.mean_interval(values, seed=seed, draws=100)
    assert first == metric.mean_interval(values, seed=seed, draws=100)
    assert min(values) - 1e-12 <= first.low <= first.high <= max(values) + 1e-12
    assert first.value == pytest.approx(sum(values) / len(values))


def test_an_interval_covers_what_it_should() -> None:
    """Of 95 % intervals for the mean of 60 coin throws, about 95 % hold the coin's mean (binomial: 86 to 100)."""
    generator = random.Random(7)
    inside = 0
    for seed in range(100):
        throws = [float(generator.random() < 0.3) for _ in range(60)]
        found = metric.mean_interval(throws, seed=seed, draws=150)
        inside += found.low <= 0.3 <= found.high
    assert 86 <= inside <= 100


def test_an_interval_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="needs parts"):
        metric.mean_interval([])
