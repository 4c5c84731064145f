"""Search: how far chains of turns have come after each number of turns (the article's figure 6)."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

#: Speedups of a chain, turn by turn; None for a turn that is not honest and correct, 0 where nothing was timed.
Turns = list[float | None]
#: The measure that is no share.
SPEEDUP = "Speedup"


class Curve(NamedTuple):
    """One number after each turn."""

    measure: str
    """What it is, such as `Fast@1`."""
    of: str
    """`last`: of the last turn so far; `best`: of the best so far."""
    points: Sequence[tuple[float, float]]
    """(turns, value)"""


def curves(chains: Sequence[Turns], thresholds: Sequence[float]) -> list[Curve]:
    """Return the share of chains that are honest and correct, and that are as fast as each threshold, and the speed.

    A chain that ended keeps its last turn, as whoever asked for it would. Speed is the median of the best speedups so
    far; a chain without any counts as 0.
    """
    longest = max(map(len, chains), default=0)
    found = []
    for measure, least in [("Honest and correct", None), *((f"Fast@{p:g}", p) for p in thresholds)]:
        after = [[_reached(turn, least) for turn in chain] for chain in chains]
        last = [[chain[min(turns, len(chain)) - 1] for chain in after if chain] for turns in range(1, longest + 1)]
        best = [[any(chain[:turns]) for chain in after] for turns in range(1, longest + 1)]
        for of, reached in (("last", last), ("best", best)):
            shares = [(float(turns), sum(each) / len(chains)) for turns, each in enumerate(reached, start=1)]
            found.append(Curve(measure, of, shares))
    speeds = [(float(turns), median(_best(chain[:turns]) for chain in chains)) for turns in range(1, longest + 1)]
    return [*found, Curve(SPEEDUP, "best", speeds)]


def _reached(turn: float | None, least: float | None) -> bool:
    return turn is not None and (least is None or turn >= least)


def _best(chain: Turns) -> float:
    return max((turn for turn in chain if turn is not None), default=0.0)
