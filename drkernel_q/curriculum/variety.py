"""Variety: how much generated solutions differ by more than their problem and their quality."""

import random
from collections.abc import MutableSequence, Sequence
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")


class Variety(NamedTuple):
    """What is drawn of solutions, and how long chains are."""

    drawn: bool = True
    """Whether launches, slips, faults and parts are drawn; otherwise the first that will do is taken, so that a
    solution follows from problem and quality, and a model can be sure of it."""
    longest: int = 100
    """Most parts of a chain."""
    operators: frozenset[str] | None = None
    """Names of the parts that a chain may have; None allows all."""

    def allows(self, chain: tuple[str, ...]) -> bool:
        """Whether there may be a problem of this chain."""
        return len(chain) <= self.longest and (self.operators is None or self.operators.issuperset(chain))

    def habit(self, draw: random.Random) -> random.Random:
        """Return what chooses the details of solutions."""
        return draw if self.drawn else _Settled()


#: All that there is.
FULL = Variety()


class _Settled(random.Random):
    """Draws nothing: of several it takes the first."""

    def choice(self, options: Sequence[Item]) -> Item:  # type: ignore[override]
        """Take the first."""
        return options[0]

    def sample(self, options: Sequence[Item], count: int, **_: Any) -> list[Item]:  # type: ignore[override]
        """Take the first ones."""
        return list(options[:count])

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Turn round what is listed: of the changes that make a recipe wrong, the largest comes last."""
        items.reverse()
