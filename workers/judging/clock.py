"""The judge's own clock, held against the times that a candidate claims (the two-clock rule).

A candidate's process could lie about its events. It cannot do the work in less time than passes for the judge while it
answers, and its answer commits it to outputs that the judge then looks at.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import NamedTuple, Protocol

import torch

from drkernel_q.artefact import Burst
from drkernel_q.rules import hidden_ms
from workers.comparison.measure import Expected
from workers.exchange.stopwatch import Stopwatch

#: Calls of the bursts; fewer when they would take longer than this, milliseconds. Where calls are not marked one by
#: one there are shorter bursts too, of a third.
BURST = {"cuda": 20, "cpu": 6}
SHORT_MS = 300.0
#: A burst has room for at least this many calls, or the rule is not applied.
SHORTEST_BURST = 3
#: Bursts of each length, of either side, in one reading.
BURSTS = {"cuda": 1, "cpu": 3}
#: Noise of a call's time as a burst shows it, what a request may cost beyond empty calls in the judge, and measurements
#: before a claim that lacks more counts as a lie: whatever disturbs one makes the clock show more, never less.
NOISE_MS = {"cuda": 0.2, "cpu": 2.0}
REQUEST_MS = {"cuda": 8.0, "cpu": 20.0}
CHECKS = {"cuda": 8, "cpu": 3}
#: Noise of a call's time as marks show it: the harness may be slower to go on than the judge is. 0.027 at most over 60
#: evaluations on the GPUs of a busy host.
MARK_NOISE_MS = 0.06


class Pace(NamedTuple):
    """How long a burst took by the judge's clock."""

    seconds: float
    """From the request to the reply."""
    gaps_ms: tuple[float, ...] = ()
    """From each mark to the next, a call each, flush and spin included; none where calls are not marked."""


class Bursting(Protocol):
    """Something that can make timed calls in a row."""

    @property
    def most_calls(self) -> int:
        """Longest burst that its inputs leave room for."""
        ...

    def burst(self, calls: int) -> Pace:
        """Make `calls` timed calls; return how long they took by the judge's clock."""
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

    def burst(self, calls: int) -> Pace:
        """Time nothing `calls` times; return the time that passed."""
        now = time.process_time if self.device == "cpu" else time.perf_counter  # as `CandidateSide.burst` does
        moments: list[float] = []
        nothing = [lambda: self.outputs] * calls
        start = now()
        if self.device == "cpu":
            self.stopwatch.burst(nothing)
        else:
            with listener() as heard:
                self.stopwatch.burst(nothing, mark=(_mark, heard, moments))
        return Pace(now() - start, tuple(1e3 * (end - begin) for begin, end in pairwise(moments)))


@contextmanager
def listener() -> Iterator[int]:
    """Give a descriptor at which somebody waits for bytes, as the judge does for a candidate's marks.

    To wake him costs whoever writes some microseconds, which are no part of a call.
    """
    ours, theirs = os.pipe()
    thread = threading.Thread(target=_drain, args=(ours,))
    thread.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        thread.join()
        os.close(ours)


def _drain(fd: int) -> None:
    while os.read(fd, 1):
        pass


def _mark(fd: int, moments: list[float]) -> None:
    os.write(fd, b"\0")
    moments.append(time.perf_counter())


class Clock(NamedTuple):
    """One candidate call by the judge's own clock."""

    call_ms: float
    """Best estimate."""
    bound_ms: float
    """No call can have taken less: the estimate, or what whole bursts say, whichever says more beyond its noise."""
    noise_ms: float
    """How far that may be off."""
    bursts: tuple[Burst, ...]
    """What was measured."""


def _calls(candidate: Bursting, device: str, call_ms: float) -> int:
    return max(min(BURST[device], candidate.most_calls, int(SHORT_MS / call_ms)), SHORTEST_BURST)


def warm_up(candidate: Bursting, device: str, call_ms: float) -> None:
    """Make a burst that is not read: memory that outputs have never lain in is slow to get.

    A call takes about `call_ms`. Without room for a burst there is none.
    """
    if candidate.most_calls >= SHORTEST_BURST:
        candidate.burst(_calls(candidate, device, call_ms))


def read_clock(candidate: Bursting, empty: Bursting, device: str, claimed_ms: float) -> Clock:
    """Time one candidate call by the judge's clock.

    On a device each call of a burst is marked when it is over, and the estimate is the median time between marks less
    that of empty calls: what a request costs does not enter. Elsewhere it is the slope between bursts of k and 3k calls
    less that of empty ones; whatever else a machine does makes a burst longer, so the shortest of each kind count.
    Marks could be set wrongly, and a candidate that dawdles in short bursts makes the slope small. It cannot make a
    burst shorter than its work, so the longest ones are shared out among their calls too, less what a request may cost.
    """
    many = _calls(candidate, device, claimed_ms)
    lengths = (many,) if device == "cuda" else (many, many // 3)
    paces = [
        (name, calls, side.burst(calls))
        for _ in range(BURSTS[device])
        for name, side in (("candidate", candidate), ("empty", empty))
        for calls in lengths
    ]

    def least_ms(name: str, calls: int) -> float:
        return 1e3 * min(pace.seconds for pace_of, length, pace in paces if (pace_of, length) == (name, calls))

    def gap_ms(name: str) -> float:
        return median(gap for pace_of, _, pace in paces if pace_of == name for gap in pace.gaps_ms)

    if device == "cuda":
        call_ms = max(gap_ms("candidate") - gap_ms("empty"), 0.0)
    else:
        few = many // 3
        slopes = [(least_ms(name, many) - least_ms(name, few)) / (many - few) for name in ("candidate", "empty")]
        call_ms = max(slopes[0] - slopes[1], 0.0)
    share_ms = (least_ms("candidate", many) - least_ms("empty", many) - REQUEST_MS[device]) / many
    bursts = tuple(
        Burst(side=name, calls=calls, seconds=pace.seconds, gaps_ms=pace.gaps_ms) for name, calls, pace in paces
    )
    noise_ms = MARK_NOISE_MS if device == "cuda" else NOISE_MS[device]
    bounds = (call_ms, noise_ms), (max(share_ms, 0.0), NOISE_MS[device])
    return Clock(call_ms, *max(bounds, key=lambda bound: bound[0] - bound[1]), bursts)


def read_until_agreed(candidate: Claiming, stopwatch: Stopwatch, device: str, claimed_ms: float) -> Clock | None:
    """Read the clock until it agrees with what is claimed, `CHECKS` times at most; None without room for bursts."""
    if candidate.most_calls < SHORTEST_BURST:  # and such calls take long
        return None
    empty = EmptySide(stopwatch, candidate.expected_like, device)
    for _ in range(CHECKS[device]):
        clock = read_clock(candidate, empty, device, claimed_ms)
        if not hidden_ms(device, claimed_ms, clock.bound_ms, clock.noise_ms):
            break
    return clock
