"""A budget is never exceeded, and rules for ending early do as they say."""

from hypothesis import given
from hypothesis import strategies as st

from policy.search.budget import Budget, Limits, Prices, Tokens, best_so_far, stalled

CALLS = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500), st.floats(0, 1)), max_size=30)
REWARDS = st.lists(st.one_of(st.none(), st.floats(0, 4)), max_size=20)


@given(CALLS, st.integers(1, 5000), st.integers(1, 4))
def test_tokens_and_cost_are_never_exceeded(calls: list[tuple[int, int, float]], most: int, width: int) -> None:
    """Whatever calls need, however many are open at a time."""
    limits = Limits(tokens=most, cost=most / 1e6 * 2, prices=Prices(prompt=1, completion=4))
    budget = Budget(limits)
    open_calls: list[tuple[Tokens, Tokens]] = []
    for prompt, longest, share in calls:
        asked = Tokens(prompt, longest)
        if budget.reserve(asked) is None:
            open_calls.append((asked, Tokens(prompt, int(longest * share))))
        if len(open_calls) == width:
            budget.settle(*open_calls.pop(0))
        assert sum(budget.spent) <= most
        assert budget.cost <= (limits.cost or 0) + 1e-12
    for each in open_calls:
        budget.settle(*each)
    assert sum(budget.spent) <= most
    assert budget.cost <= (limits.cost or 0) + 1e-12


def test_what_is_used_up_is_named() -> None:
    now = 0.0
    budget = Budget(Limits(seconds=10, tokens=100, cost=1e-4, prices=Prices(completion=10)), clock=lambda: now)
    assert budget.reserve(Tokens(50, 51)) == "tokens"
    assert budget.reserve(Tokens(50, 11)) == "cost"
    assert budget.reserve(Tokens(50, 10)) is None
    assert budget.reserve(Tokens(1, 1)) == "cost"
    budget.settle(Tokens(50, 10), Tokens(50, 2))
    assert budget.reserve(Tokens(1, 1)) is None
    now = 10.0
    assert budget.reserve(Tokens(1, 1)) == "time"


def test_what_was_spent_before_counts() -> None:
    budget = Budget(Limits(tokens=100))
    budget.book(Tokens(60, 30))
    assert budget.reserve(Tokens(5, 6)) == "tokens"
    assert budget.reserve(Tokens(5, 5)) is None


@given(REWARDS)
def test_best_so_far_never_declines(rewards: list[float | None]) -> None:
    line = best_so_far(rewards)
    assert line == sorted(line)
    assert len(line) == len(rewards)


@given(REWARDS, st.integers(1, 5))
def test_patience(rewards: list[float | None], patience: int) -> None:
    """Against a count that walks along the turns."""
    best, since = 0.0, 0
    for found in rewards:
        since = 0 if (found or 0.0) > best else since + 1
        best = max(best, found or 0.0)
    assert stalled(rewards, patience) == (since >= patience)
