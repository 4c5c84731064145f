"""The judge's own clock, held against the times that a candidate claims (the two-clock rule).

A candidate's process could lie about its events. It cannot do the work in less time than passes for the judge while it
answers, and its answer commits it to outputs that the judge then looks at.
"""

import sys
import time
from typing import NamedTuple, Protocol

import torch

from drkernel_q.artefact import Burst
from drkernel_q.rules import hidden_ms
from workers.measure import Expected
from workers.stopwatch import Stopwatch

#: Calls of the shorter burst; fewer when they would take longer than this, milliseconds.
BURST = {"cuda": 10, "cpu": 2}
SHORT_MS = 100.0
#: A longer burst has room for at least this many calls, or the rule is not applied.
SHORTEST_BURST = 3
#: Bursts of either length, of either side.
BURSTS = {"cuda": 4, "cpu": 3}
#: Noise of a call's time, what a request may cost beyond empty calls in the judge, and measurements before a claim that
#: lacks more counts as a lie.
NOISE_MS = {"cuda": 0.2, "cpu": 2.0}
REQUEST_MS = {"cuda": 5.0, "cpu": 20.0}
CHECKS = 3


class Bursting(Protocol):
    """Something that can make timed calls in a row."""

    @property
    def most_calls(self) -> int:
        """Longest burst that its inputs leave room for."""
        ...

    def burst(self, calls: int) -> float:
        """Make `calls` timed calls; return the seconds that passed on the judge's clock."""
        ...


class Claiming(Bursting, Protocol):
    """A candidate, whose outputs have a known shape."""

    expected_like: Expected


class EmptySide:
    """Nothing, timed in the judge: what flush, spin, synchronization and checksums cost by themselves."""

    def __init__(self, stopwatch: Stopwatch, like: Expected, device: str) -> None:
        """Use the judge's stopwatch, and outputs of the same size."""
        self.stopwatch = stopwatch
        self.device = device
        self.most_calls = sys.maxsize
        self.outputs = [torch.zeros(tensor.shape, dtype=tensor.dtype, device=device) for tensor in like.working]

    def burst(self, calls: int) -> float:
        """Time nothing `calls` times; return the seconds that passed."""
        now = time.process_time if self.device == "cpu" else time.perf_counter  # as `CandidateSide.burst` does
        start = now()
        self.stopwatch.burst([lambda: self.outputs] * calls)
        return now() - start


class Clock(NamedTuple):
    """One candidate call by the judge's own clock."""

    call_ms: float
    """Best estimate: what each call adds to a burst, without what a request costs."""
    bound_ms: float
    """No call can have taken less: the estimate, or what the longest bursts say by themselves if that is more."""
    noise_ms: float
    """How far either may be off."""
    bursts: tuple[Burst, ...]
    """What was measured."""


def read_clock(candidate: Bursting, empty: Bursting, device: str, claimed_ms: float) -> Clock:
    """Time one candidate call by the judge's clock.

    The clock sees bursts of k and 3k calls, several times; whatever else a machine does makes a burst longer, so the
    shortest of each kind count. The slope between them leaves out what a request costs, and the slope of empty calls
    leaves out flush, spin and checksums. A candidate that dawdles in short bursts makes the slope small, but cannot
    make the long ones shorter than its work, so these are shared out among their calls too, less what a request may
    cost.
    """
    few = max(min(BURST[device], candidate.most_calls // 3, int(SHORT_MS / claimed_ms)), 1)
    many = 3 * few
    candidate.burst(many)  # memory that outputs have never lain in is slow to get
    bursts = [
        Burst(side=name, calls=calls, seconds=side.burst(calls))
        for _ in range(BURSTS[device])
        for name, side in (("candidate", candidate), ("empty", empty))
        for calls in (many, few)
    ]

    def least_ms(name: str, calls: int) -> float:
        return 1e3 * min(burst.seconds for burst in bursts if (burst.side, burst.calls) == (name, calls))

    base = (least_ms("empty", many) - least_ms("empty", few)) / (many - few)
    slope = (least_ms("candidate", many) - least_ms("candidate", few)) / (many - few)
    share = (least_ms("candidate", many) - least_ms("empty", many) - REQUEST_MS[device]) / many
    return Clock(max(slope - base, 0.0), max(slope - base, share, 0.0), NOISE_MS[device], tuple(bursts))


def read_until_agreed(candidate: Claiming, stopwatch: Stopwatch, device: str, claimed_ms: float) -> Clock | None:
    """Read the clock until it agrees with what is claimed, `CHECKS` times at most; None without room for bursts."""
    if candidate.most_calls < SHORTEST_BURST:  # and such calls take long
        return None
    empty = EmptySide(stopwatch, candidate.expected_like, device)
    for _ in range(CHECKS):
        clock = read_clock(candidate, empty, device, claimed_ms)
        if not hidden_ms(device, claimed_ms, clock.bound_ms, clock.noise_ms):
            break
    return clock
