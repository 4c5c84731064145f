"""Stopwatch: the time of one call on a cold cache; the same code times the reference and the candidate."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from workers.shared import flatten

#: Cache flush, bytes: more than four times the L2 of a large GPU; on the CPU about a core's own caches.
FLUSH_BYTES = {"cuda": 256 * 2**20, "cpu": 4 * 2**20}
#: Clock cycles that the device spins after the flush (about 1 ms), so that the host has launched before the first event
#: fires; a launch from Python on a cold host takes up to a few hundred microseconds.
SPIN_CYCLES = 2_000_000
#: The same within a burst, whose calls follow each other: the host is warm, and the shorter the spin, the less a
#: change of its clock shifts the slope.
BURST_SPIN_CYCLES = 400_000


class Stopwatch:
    """Times single calls on a cold cache."""

    def __init__(self, device: str) -> None:
        """Bind what is needed now, before code that could replace it has been loaded."""
        #: Milliseconds that the device went on working after the last event of the last call.
        self.late_ms = 0.0
        self._flush = torch.empty(FLUSH_BYTES[device], dtype=torch.uint8, device=device)
        self._clock = time.perf_counter
        self._cuda = device == "cuda"
        if self._cuda:
            # The C base class cannot be patched; torch.cuda.Event can.
            event = torch._C._CudaEventBase
            self._record, self._elapsed = event.record, event.elapsed_time
            self._events = [event(enable_timing=True, blocking=False, interprocess=False) for _ in range(2)]
            self._stream = torch.cuda.current_stream()
            self._wait = event.synchronize
            self._sync = torch._C._cuda_synchronize
            self._spin: Callable[[int], None] = torch._C._cuda_sleep

    def time(
        self, call: Callable[[], Any], spin_cycles: int = SPIN_CYCLES, take: Callable[[Any], None] | None = None
    ) -> tuple[float, Any]:
        """Return the milliseconds of one call and what it returned.

        `take` is given what the call returned, and begins to copy it, in the order of the stream and before anybody
        waits for the device: work that the call has left to other streams has no time to catch up.
        """
        self._flush.zero_()
        if not self._cuda:
            start = self._clock()
            result = call()
            milliseconds = (self._clock() - start) * 1e3
            if take is not None:
                take(result)
            return milliseconds, result
        self._spin(spin_cycles)
        start_event, end_event = self._events
        self._record(start_event, self._stream)
        result = call()
        self._record(end_event, self._stream)
        if take is not None:
            take(result)
        self._wait(end_event)
        ended = self._clock()
        self._sync()
        self.late_ms = (self._clock() - ended) * 1e3
        return self._elapsed(start_event, end_event), result

    def burst(self, calls: Iterable[Callable[[], Any]]) -> list[list[Tensor]]:
        """Time calls in a row, and keep what they returned, as lists of tensors."""
        kept = []
        for call in calls:
            outputs: list[Tensor] = []
            flatten(self.time(call, BURST_SPIN_CYCLES)[1], outputs)
            kept.append(outputs)
        return kept
