"""Claim: what a candidate's process says, read without trust in it."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from drkernel_q.evaluation import Outcome

#: Longest text that is taken from a candidate, characters: the harness sends its errors no longer.
MAX_TEXT = 6000
#: What broken claims raise where they are read.
_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class CandidateFailed(Exception):
    """The candidate ended its evaluation: `outcome` says how, `fault` in a word of `workers.isolation.fault`."""

    def __init__(self, outcome: Outcome, error: str, fault: str | None = None, state: Iterable[str] = ()) -> None:
        """Keep what is reported; `state` names what the harness saw changed (`workers.harness.state.CODES`)."""
        super().__init__(error)
        self.outcome = outcome
        self.error = error
        self.fault = fault
        self.state = tuple(state)


def claimed_text(value: object) -> str:
    """Return text of the candidate's as it can be stored and sent: its last `MAX_TEXT` characters, all Unicode."""
    return str(value)[-MAX_TEXT:].encode("utf-8", "replace").decode()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Read claims: whatever broken ones raise ends the candidate's evaluation, and not the judge."""
    try:
        yield
    except _BROKEN as error:
        text = claimed_text(error)
        raise CandidateFailed(Outcome.CRASHED, f"what the process reported as {what} is nonsense: {text}") from error


def number(value: Any) -> float:
    """Return a claimed number; 0 for what is none, or none that is finite and positive."""
    number = float(value) if isinstance(value, int | float) else 0.0
    return number if math.isfinite(number) and number > 0 else 0.0
