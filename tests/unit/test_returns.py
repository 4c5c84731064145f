"""Returns of the turns of a trajectory."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.method.returns import turn_returns

rewards = st.lists(st.floats(-5, 5), max_size=6)
broken = st.lists(st.none() | st.floats(-5, 5), max_size=6)
gammas = st.floats(0, 1)


def test_numbers_of_the_released_code() -> None:
    assert turn_returns([0, 1, 2], 1.0) == [3, 3, 2]
    assert turn_returns([0, 1, 2], 0.5) == [1.0, 2.0, 2.0]
    assert turn_returns([], 1.0) == []


@given(rewards, gammas)
def test_a_return_is_the_discounted_sum_from_its_turn_on(values: list[float], gamma: float) -> None:
    found = turn_returns(values, gamma)
    for turn, value in enumerate(found):
        expected = math.fsum(gamma**later * reward for later, reward in enumerate(values[turn:]))
        assert value == pytest.approx(expected, abs=1e-9)
    assert turn_returns(values, 0.0) == values


@given(rewards.filter(bool), gammas, st.data())
def test_a_later_turn_owes_nothing_to_an_earlier_one(values: list[float], gamma: float, data: st.DataObject) -> None:
    changed = data.draw(st.integers(0, len(values) - 1))
    other = [reward + 1 if turn == changed else reward for turn, reward in enumerate(values)]
    assert turn_returns(values, gamma)[changed + 1 :] == turn_returns(other, gamma)[changed + 1 :]


@given(broken, st.floats(0.01, 1))
def test_what_is_unknown_masks_its_turn_and_those_before(values: list[float | None], gamma: float) -> None:
    found = turn_returns(values, gamma)
    last = max((turn for turn, reward in enumerate(values) if reward is None), default=-1)
    assert found[: last + 1] == [None] * (last + 1)
    assert found[last + 1 :] == turn_returns(values[last + 1 :], gamma)


@given(broken)
def test_without_credit_for_later_turns_only_the_turn_itself_is_masked(values: list[float | None]) -> None:
    assert turn_returns(values, 0.0) == values


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_no_reward(reward: float) -> None:
    assert turn_returns([1.0, reward, 1.0]) == [None, None, 1.0]
