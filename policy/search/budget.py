"""Budget: what a search may spend, and rules for ending it early."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from drkernel_q.value import Value

_MILLION = 1_000_000


class Prices(Value):
    """What tokens cost, in any currency, for a million of them."""

    prompt: Annotated[float, Field(ge=0)] = 0.0
    completion: Annotated[float, Field(ge=0)] = 0.0

    def cost(self, tokens: "Tokens") -> float:
        """Return what these tokens cost."""
        return (tokens.prompt * self.prompt + tokens.completion * self.completion) / _MILLION


class Limits(Value):
    """When a search ends beside after its turns; None is no limit."""

    patience: Annotated[int, Field(ge=1)] | None = None
    """Turns of a chain in a row whose reward is no better than the best before."""
    target: Annotated[float, Field(gt=0)] | None = None
    """Speedup that is fast enough."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Wall clock of this command after which no turn begins; what was spent before a resumption does not count."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Prompt and completion tokens of all chains together; never exceeded."""
    cost: Annotated[float, Field(gt=0)] | None = None
    """The same in money, by `prices`."""
    prices: Prices = Prices()


class Tokens(NamedTuple):
    """Tokens of one model call, or of many."""

    prompt: int
    completion: int

    def plus(self, other: "Tokens") -> "Tokens":
        """Add up."""
        return Tokens(self.prompt + other.prompt, self.completion + other.completion)


class Budget:
    """What is left for all chains of a search.

    A call is reserved for as the longest that it can become, so that nothing is ever exceeded, and settled as what
    it was.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin now."""
        self._limits = limits
        self._clock = clock
        self._start = clock()
        self._reserved: list[Tokens] = []
        self.spent = Tokens(0, 0)

    @property
    def cost(self) -> float:
        """What was spent, in money."""
        return self._limits.prices.cost(self.spent)

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return self._clock() - self._start

    def book(self, tokens: Tokens) -> None:
        """Count what was spent without a reservation, such as before a resumption."""
        self.spent = self.spent.plus(tokens)

    def reserve(self, tokens: Tokens) -> str | None:
        """Set aside what a call can need; or return what is used up: `time`, `tokens` or `cost`."""
        if self._limits.seconds is not None and self.seconds >= self._limits.seconds:
            return "time"
        worst = tokens.plus(self.spent)
        for other in self._reserved:
            worst = worst.plus(other)
        if self._limits.tokens is not None and sum(worst) > self._limits.tokens:
            return "tokens"
        if self._limits.cost is not None and self._limits.prices.cost(worst) > self._limits.cost:
            return "cost"
        self._reserved.append(tokens)
        return None

    def settle(self, reserved: Tokens, used: Tokens) -> None:
        """Give back a reservation, and count what was used of it."""
        self._reserved.remove(reserved)
        self.book(used)


def best_so_far(rewards: Sequence[float | None]) -> list[float]:
    """Return the best reward up to each turn, from 0 (nothing found); it never declines."""
    best, line = 0.0, []
    for found in rewards:
        best = max(best, found or 0.0)
        line.append(best)
    return line


def stalled(rewards: Sequence[float | None], patience: int) -> bool:
    """Whether none of the last `patience` turns was better than the best before it; failures count as no better."""
    line = best_so_far(rewards)
    if len(line) < patience:
        return False
    before = line[-patience - 1] if len(line) > patience else 0.0
    return line[-1] <= before
