"""The judge's own clock, held against the times that a candidate claims (the two-clock rule).

A candidate's process could lie about its events. It cannot do the work in less time than passes for the judge while it
answers, and its answer commits it to outputs that the judge then looks at.
"""

import sys
import time
from typing import NamedTuple, Protocol

import numpy as np
import torch

from drkernel_q.artefact import Burst
from drkernel_q.rules import hidden_ms
from workers.measure import Expected
from workers.stopwatch import Stopwatch

#: Calls of the shorter burst, and calls so slow that one is enough.
BURST = {"cuda": 15, "cpu": 2}
SLOW_MS = 300.0
#: A longer burst has room for at least this many calls, or the rule is not applied.
SHORTEST_BURST = 3
#: Pairs of bursts of either side.
BURSTS = {"cuda": 5, "cpu": 3}
#: Noise that is always allowed, and measurements before a claim that lacks more counts as a lie.
FLOOR_NOISE_MS = {"cuda": 0.08, "cpu": 2.0}
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
        self.most_calls = sys.maxsize
        self.outputs = [torch.zeros(tensor.shape, dtype=tensor.dtype, device=device) for tensor in like.working]

    def burst(self, calls: int) -> float:
        """Time nothing `calls` times; return the seconds that passed."""
        start = time.perf_counter()
        self.stopwatch.burst([lambda: self.outputs] * calls)
        return time.perf_counter() - start


class Clock(NamedTuple):
    """One candidate call by the judge's own clock."""

    median_ms: float
    least_ms: float
    """The smallest of the repeats: whatever else the machine did, a call took no less."""
    noise_ms: float
    """How far that may be off."""
    bursts: tuple[Burst, ...]
    """What was measured."""


def read_clock(candidate: Bursting, empty: Bursting, device: str, claimed_ms: float) -> Clock:
    """Time one candidate call by the judge's clock.

    The clock sees bursts of k and 3k calls; the slope between them leaves out what a request costs, and the slope of
    empty calls leaves out flush and checksums.
    """
    few = min(BURST[device], candidate.most_calls // 3) if claimed_ms < SLOW_MS else 1
    bursts: list[Burst] = []

    def slope(name: str, side: Bursting) -> float:
        long, short = (Burst(side=name, calls=calls, seconds=side.burst(calls)) for calls in (3 * few, few))
        bursts.extend((long, short))
        return (long.seconds - short.seconds) / (2 * few) * 1e3

    candidate.burst(3 * few)  # memory that outputs have never lain in is slow to get
    slopes = [(slope("candidate", candidate), slope("empty", empty)) for _ in range(BURSTS[device])]
    both, base = np.array(slopes).T
    net = both - np.median(base)
    noise_ms = float(np.ptp(base)) + FLOOR_NOISE_MS[device]
    return Clock(max(float(np.median(net)), 0.0), max(float(net.min()), 0.0), noise_ms, tuple(bursts))


def read_until_agreed(candidate: Claiming, stopwatch: Stopwatch, device: str, claimed_ms: float) -> Clock | None:
    """Read the clock until it agrees with what is claimed, `CHECKS` times at most; None without room for bursts."""
    if candidate.most_calls < SHORTEST_BURST:  # and such calls take long
        return None
    empty = EmptySide(stopwatch, candidate.expected_like, device)
    for _ in range(CHECKS):
        clock = read_clock(candidate, empty, device, claimed_ms)
        if not hidden_ms(device, claimed_ms, clock.least_ms, clock.noise_ms):
            break
    return clock
