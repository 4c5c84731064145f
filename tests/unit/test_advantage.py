"""Advantages: identities of each formula, and public formulas written again as oracles."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policy.method.advantage import AdvantageConfig, advantages, group_advantages

Rows = list[list[float | None]]

numbers = st.floats(-10, 10)
whole_groups = st.integers(1, 4).flatmap(
    lambda turns: st.lists(st.lists(numbers, min_size=turns, max_size=turns), min_size=2, max_size=6)
)
ragged_groups = st.lists(st.lists(st.none() | numbers, max_size=4), max_size=6)
configs = st.builds(
    AdvantageConfig,
    kind=st.sampled_from(["trloo", "grpo", "rloo"]),
    singleton=st.sampled_from(["raw", "zero"]),
    divide_by_std=st.booleans(),
)
NEAR = {"rel": 1e-9, "abs": 1e-9}


def trloo(returns: list[list[float]]) -> Rows:
    return advantages(returns, AdvantageConfig())


def column(rows: Rows, turn: int) -> list[float]:
    return [value for row in rows if turn < len(row) and (value := row[turn]) is not None]


def brute_force(returns: Rows, i: int, turn: int) -> float | None:
    mine = returns[i][turn]
    if mine is None:
        return None
    others = column([row for j, row in enumerate(returns) if j != i], turn)
    return mine - (sum(others) / len(others) if others else 0.0)


@given(ragged_groups)
def test_trloo_is_the_return_less_the_mean_of_the_others(returns: Rows) -> None:
    found = advantages(returns)
    assert [len(row) for row in found] == [len(row) for row in returns]
    for i, row in enumerate(found):
        for turn, value in enumerate(row):
            expected = brute_force(returns, i, turn)
            assert value == (None if expected is None else pytest.approx(expected, **NEAR))


@given(whole_groups)
def test_trloo_equals_the_public_formulas(returns: list[list[float]]) -> None:
    count = len(returns)
    found = trloo(returns)
    for turn in range(len(returns[0])):
        values = column(returns, turn)  # type: ignore[arg-type]
        total, mean = sum(values), sum(values) / count
        for i, score in enumerate(values):
            one_pass = score - (total - score) / (count - 1)
            vectorized = (count * score - total) / (count - 1) * (count > 1)
            scaled = score * count / (count - 1) - mean * count / (count - 1)
            for oracle in (one_pass, vectorized, scaled):
                assert found[i][turn] == pytest.approx(oracle, **NEAR)


@given(whole_groups, st.floats(-100, 100))
def test_trloo_sums_to_zero_and_knows_no_shift(returns: list[list[float]], shift: float) -> None:
    found = trloo(returns)
    moved = trloo([[value + shift for value in row] for row in returns])
    for turn in range(len(returns[0])):
        assert math.fsum(column(found, turn)) == pytest.approx(0, abs=1e-9)
        assert column(moved, turn) == pytest.approx(column(found, turn), rel=1e-9, abs=1e-9)


@given(whole_groups, st.floats(0, 100))
def test_trloo_scales_with_the_returns_and_is_a_multiple_of_grpo(returns: list[list[float]], scale: float) -> None:
    found = trloo(returns)
    scaled = trloo([[value * scale for value in row] for row in returns])
    grpo = advantages(returns, AdvantageConfig(kind="grpo"))
    count = len(returns)
    for turn in range(len(returns[0])):
        assert column(scaled, turn) == pytest.approx([scale * value for value in column(found, turn)], **NEAR)
        shrunk = [(count - 1) / count * value for value in column(found, turn)]
        assert column(grpo, turn) == pytest.approx(shrunk, **NEAR)


@given(ragged_groups, configs, st.randoms(use_true_random=False))
def test_the_order_of_trajectories_changes_no_bit(
    returns: Rows, config: AdvantageConfig, chance: random.Random
) -> None:
    order = list(range(len(returns)))
    chance.shuffle(order)
    found = advantages(returns, config)
    assert advantages([returns[i] for i in order], config) == [found[i] for i in order]


@given(ragged_groups, configs, st.lists(st.lists(st.none(), max_size=3), max_size=3))
def test_what_has_no_return_changes_nobody(returns: Rows, config: AdvantageConfig, failed: Rows) -> None:
    """Failed trajectories, and turns beyond the end, leave the others as though they had never been."""
    found = advantages(returns, config)
    assert advantages(returns + failed, config)[: len(returns)] == found
    padded = advantages([[*row, None] for row in returns], config)
    assert [row[:-1] for row in padded] == found
    assert {row[-1] for row in padded if config.kind != "rloo"} <= {None}


@given(ragged_groups, configs)
def test_an_advantage_is_there_where_a_return_is_and_always_finite(returns: Rows, config: AdvantageConfig) -> None:
    for row, source in zip(advantages(returns, config), returns, strict=True):
        for value, given_return in zip(row, source, strict=True):
            known = source[0] if config.kind == "rloo" else given_return
            assert (value is None) == (known is None)
            assert value is None or math.isfinite(value)


@pytest.mark.parametrize("reward", [None, math.nan])
def test_an_unknown_reward_never_reaches_an_advantage(reward: float | None) -> None:
    rewards: Rows = [[1.0, 2.0], [0.0, reward], [3.0]]
    found = group_advantages(rewards)
    assert found == [[0.0, 2.0], [None, None], [0.0]], "two first turns compare, and the second turn stands alone"
    assert group_advantages([[1.0, 2.0], [3.0]]) == [found[0], found[2]]


def test_a_trajectory_alone_in_its_turn() -> None:
    returns: Rows = [[4.0, 2.0], [1.0]]
    assert advantages(returns) == [[3.0, 2.0], [-3.0]]
    assert advantages(returns, AdvantageConfig(singleton="zero")) == [[3.0, 0.0], [-3.0]]
    assert advantages(returns, AdvantageConfig(kind="grpo")) == [[1.5, 0.0], [-1.5]]


def test_rloo_gives_every_turn_what_the_trajectory_deserves() -> None:
    returns: Rows = [[4.0, 1.0, 1.0], [1.0], [None, 5.0]]
    assert advantages(returns, AdvantageConfig(kind="rloo")) == [[3.0, 3.0, 3.0], [-3.0], [None, None]]


def test_turn_independent_knows_only_the_turn_itself() -> None:
    rewards: Rows = [[0.0, 4.0], [2.0, 0.0]]
    assert group_advantages(rewards, AdvantageConfig(kind="turn_independent")) == [[-1.0, 2.0], [1.0, -2.0]]
    assert group_advantages(rewards, AdvantageConfig(kind="grpo")) == [[1.0, 2.0], [-1.0, -2.0]]
    assert group_advantages(rewards, AdvantageConfig(gamma=0.5)) == [[0.0, 4.0], [0.0, -4.0]]


def test_the_deviation_is_that_of_a_sample() -> None:
    found = advantages([[1.0], [3.0]], AdvantageConfig(kind="grpo", divide_by_std=True))
    assert column(found, 0) == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)], rel=1e-5)
    assert advantages([[2.0], [2.0]], AdvantageConfig(kind="grpo", divide_by_std=True)) == [[0.0], [0.0]]


@given(whole_groups, st.data())
def test_rejected_turns_stay_in_the_baseline_or_leave_it(returns: list[list[float]], data: st.DataObject) -> None:
    kept = [[data.draw(st.booleans()) for _ in row] for row in returns]
    assume(any(map(any, kept)))
    assert advantages(returns, AdvantageConfig(baseline="all"), kept) == advantages(returns)
    found = advantages(returns, AdvantageConfig(baseline="kept"), kept)
    alone: Rows = [[value if kept[i][t] else None for t, value in enumerate(row)] for i, row in enumerate(returns)]
    expected = advantages(alone)
    for i, row in enumerate(kept):
        assert [found[i][t] for t, keep in enumerate(row) if keep] == [
            expected[i][t] for t, keep in enumerate(row) if keep
        ]
