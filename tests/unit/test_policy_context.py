"""Which turns a prompt holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.search.context import chosen, ranking, total_turns, whole, without_worst

REWARDS = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0, 1.5, 2.5])), max_size=20)


@given(REWARDS, st.integers(0, 25))
def test_the_window_is_the_true_top(rewards: list[float | None], window: int) -> None:
    """Against a plain reading of the rule; no turn left out is better than one held."""
    held = chosen(rewards, window)
    known = [index for index, found in enumerate(rewards) if found is not None]
    if len(rewards) <= window:
        assert held == known
        return
    assert len(held) == min(window, len(known))
    worth = {index: (rewards[index] or 0.0, index) for index in known}
    left = [worth[index] for index in known if index not in held]
    assert not left or not held or max(left) < min(worth[index] for index in held)


def test_the_best_need_not_be_neighbours() -> None:
    assert chosen([2.0, 0.0, 1.0, 0.0, 3.0, 0.0], 3) == [0, 2, 4]


def test_of_equals_the_later_is_held() -> None:
    assert chosen([1.0, 1.0, 1.0], 2) == [1, 2]
    assert ranking([0.0, None, 1.0, 0.0]) == [2, 3, 0]


def test_no_window_is_no_history() -> None:
    assert [chosen([1.0] * turns, 0) for turns in range(4)] == [[], [], [], []]


def test_a_window_larger_than_the_history_holds_it_all() -> None:
    assert chosen([1.0, 0.0, 2.0], 9) == whole([1.0, 0.0, 2.0]) == [0, 1, 2]


@given(st.integers(0, 6), st.integers(1, 6), st.integers(1, 5))
def test_count_formula(window: int, growth: int, iterations: int) -> None:
    """I prompts from scratch that each grow to T0 turns make T0 + (I - 1)(T0 - w) turns."""
    span = window + growth
    turns = total_turns(span, iterations, window)
    sizes = [len(chosen([0.0] * before, window, span)) for before in range(turns + 1)]
    assert max(sizes) + 1 <= span
    begun = 1 + sum(before > 0 and sizes[before] == window and before >= span for before in range(turns))
    full = sum(size + 1 == span for size in sizes[:turns])
    assert full == iterations
    assert begun == iterations
    assert sizes[turns] == window


def test_the_published_script() -> None:
    """Five turns, ten iterations, four kept: 14 turns."""
    assert total_turns(5, 10, 4) == 14
    assert total_turns(5, 0, 4) == 0


def test_a_span_must_have_room_for_a_turn() -> None:
    with pytest.raises(ValueError, match="no room"):
        chosen([], 4, 4)


@given(REWARDS, st.integers(1, 6))
def test_a_prompt_that_is_too_long_loses_its_worst(rewards: list[float | None], window: int) -> None:
    held = chosen(rewards, window)
    while held:
        fewer = without_worst(held, rewards)
        (gone,) = set(held) - set(fewer)
        assert all((rewards[gone] or 0.0) <= (rewards[index] or 0.0) for index in fewer)
        held = fewer
