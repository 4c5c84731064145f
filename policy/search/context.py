"""Context: which of the turns found so far a prompt holds.

Everything that was found is in the store; a prompt holds the best of it (context management), or all of it until the
model's context is full (vanilla). Turns are chosen one by one; a window of consecutive turns would carry bad ones.
"""

from collections.abc import Sequence
from typing import Literal

Strategy = Literal["context", "vanilla"]

#: Turns kept in the prompt (the article's w).
WINDOW = 4


def ranking(rewards: Sequence[float | None]) -> list[int]:
    """Return the indices of turns from the best reward to the worst.

    Of equal rewards the later turn goes first: of many failures the newest teach most. A turn without a reward
    (nobody knows what it was worth) is in no ranking.
    """
    known = [(found, index) for index, found in enumerate(rewards) if found is not None]
    return [index for _, index in sorted(known, reverse=True)]


def chosen(rewards: Sequence[float | None], window: int = WINDOW, span: int | None = None) -> list[int]:
    """Return the indices of the turns that the next prompt holds, in the order in which they were written.

    A prompt grows to `span` turns with the one being written (T0; `window` + 1 by default), then starts anew from the
    best `window` of all that came before. Rewards are those of all turns so far, in order.

    Raises:
        ValueError: `span` leaves no room for a new turn beside the window.
    """
    span = window + 1 if span is None else span
    if not 0 <= window < span:
        raise ValueError(f"a prompt that grows to {span} turns has no room for {window} and a new one")
    turns = len(rewards)
    start = 0 if turns < span else span + (turns - span) // (span - window) * (span - window)
    best = ranking(rewards[:start])[:window]
    since = [index for index in range(start, turns) if rewards[index] is not None]
    return sorted(best) + since


def whole(rewards: Sequence[float | None]) -> list[int]:
    """Return the indices of all turns that somebody can be told about, in order."""
    return [index for index, found in enumerate(rewards) if found is not None]


def total_turns(span: int, iterations: int, window: int) -> int:
    """Return how many turns a number of prompts from scratch makes: T0 + (I - 1)(T0 - w)."""
    return span + (iterations - 1) * (span - window) if iterations else 0


def without_worst(held: Sequence[int], rewards: Sequence[float | None]) -> list[int]:
    """Return the held turns but for the one that ranks last, for a prompt that is too long."""
    worst = [index for index in ranking(rewards) if index in held][-1]
    return [index for index in held if index != worst]
