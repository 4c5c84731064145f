"""Stopwatch: the time of one call on a cold cache; the same code times the reference and the candidate.

A candidate's call is made on another thread than the rest. It is handed over together with what comes right after it,
so that nobody has to wake up in between, and neither clock nor events nor flush are within its reach.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from workers.exchange.integrity import bit_sum, is_readable, same_bits
from workers.exchange.shared import flatten

#: Cache flush, bytes: more than four times the L2 of a large GPU; on the CPU about a core's own caches.
FLUSH_BYTES = {"cuda": 256 * 2**20, "cpu": 4 * 2**20}
#: Clock cycles that a device spins in about a millisecond.
CYCLES_A_MS = 2_000_000
#: How long the device spins after the flush, milliseconds, so that the host has launched before the first event fires:
#: a launch from Python on a cold host takes up to a few hundred microseconds.
SPIN_MS = 0.3
#: Elements of each output that are looked at twice.
PICKED = 4096
#: A function and its arguments.
Job = tuple[Any, ...]
#: Does jobs one after the other and returns their results.
Run = Callable[..., list[Any]]


def in_order(*jobs: Job) -> list[Any]:
    """Do jobs here and now."""
    return [function(*arguments) for function, *arguments in jobs]


class Stopwatch:
    """Times single calls on a cold cache."""

    def __init__(self, device: str) -> None:
        """Bind what is needed now, before code that could replace it has been loaded."""
        #: Milliseconds that the device went on working after the last event of the last call.
        self.late_ms = 0.0
        #: Whether the outputs of the last call that was looked at were what they are now when its last event had come.
        self.settled = True
        #: How what the last call returned was nested.
        self.skeleton: Any = None
        #: Lists that hold, or held, what calls have returned: if one fails, somebody has to empty them.
        self.held: list[list[Any]] = []
        #: A job for right after each call, before the clock is read and anything is done with what it returned.
        self.settle: Job = (_nothing,)
        #: A job for right before each call of a burst.
        self.wake: Job = (_nothing,)
        self._places: dict[int, Tensor] = {}
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
        self,
        call: Callable[[], Any],
        run: Run = in_order,
        returned: list[Tensor] | None = None,
        *,
        is_looked_at: bool = True,
    ) -> tuple[float, list[Tensor]]:
        """Return the milliseconds of one call and the tensors that it returned, as `plain` makes them.

        `late_ms` then says whether the call's work was over at its last event, and so does `settled`, by the outputs,
        if these are looked at; `skeleton` says how the tensors were nested. The very objects that the call returned are
        added to `returned`, if there is such a list.
        """
        box: list[Any] = []
        kept: list[Tensor] = []
        self.held = [box, kept]
        made, unpacked = (keep, box, call), (_unpack, box, kept, returned)
        self._flush.zero_()
        if not self._cuda:
            clock, settle = (self._clock,), self.settle
            start, _, _, end, (self.skeleton, outputs) = run(clock, made, settle, clock, unpacked)
            return (end - start) * 1e3, outputs
        self._spin(int(SPIN_MS * CYCLES_A_MS))
        start_event, end_event = self._events
        self._record(start_event, self._stream)
        # Elements are picked in the order of the stream, before anybody waits for the device, or even for a thread.
        end, picks = (self._record, end_event, self._stream), [(_pick, kept, self._places)] * is_looked_at
        _, _, _, (self.skeleton, outputs), *picked = run(made, self.settle, end, unpacked, *picks)
        self._wait(end_event)
        ended = self._clock()
        self._sync()
        self.late_ms = (self._clock() - ended) * 1e3
        for before in picked:
            self.settled = all(map(same_bits, before, _pick(kept, self._places)))
            self._choose_places(outputs)
        return self._elapsed(start_event, end_event), outputs

    def _choose_places(self, outputs: list[Tensor]) -> None:
        for output in outputs:
            if output.numel() and output.numel() not in self._places:
                self._places[output.numel()] = torch.randint(output.numel(), (PICKED,), device="cuda")

    def burst(
        self, calls: Iterable[Callable[[], Any]], run: Run = in_order, mark: Job | None = None
    ) -> tuple[list[list[Tensor]], list[list[int]]]:
        """Make calls in a row, each as `time` makes it but for the events; return the tensors, and their checksums.

        `mark` is done before the first call and when the device is done with each. Checksums come after the last call,
        so that they find the cache in the same state whatever the calls did.
        """
        marks = [] if mark is None else [mark]
        jobs: list[Job] = [*marks]
        self.held = []
        for call in calls:
            box: list[Any] = []
            outputs: list[Tensor] = []
            self.held += [box, outputs]
            jobs.append((self._flush.zero_,))
            if self._cuda:
                jobs.append((self._spin, int(SPIN_MS * CYCLES_A_MS)))
            jobs += [self.wake, (keep, box, call), self.settle, (_unpack, box, outputs, None)]
            if self._cuda:
                jobs.append((self._sync,))
            jobs += marks
        results = zip(jobs, run(*jobs), strict=True)
        kept: list[list[Tensor]] = [result[1] for job, result in results if job[0] is _unpack]
        sums = [bit_sum(output) for each in kept for output in each]
        numbers = iter(torch.stack(sums).tolist() if sums else ())
        return kept, [[next(numbers) for _ in each] for each in kept]


def plain(outputs: Iterable[Any]) -> list[Tensor]:
    """Return other objects of the same tensors, which nobody else has; none for what is no plain strided tensor."""
    return [Tensor.detach(output) for output in outputs if is_readable(output)]


def _nothing() -> None: ...


def keep(box: list[Any], call: Callable[[], Any]) -> None:
    """Make one call; nobody looks yet at what it returns."""
    box.append(call())


def _unpack(box: list[Any], outputs: list[Tensor], returned: list[Tensor] | None) -> tuple[Any, list[Tensor]]:
    """Put the tensors of what was kept into the lists, and let go of the rest; return skeleton and plain outputs."""
    found: list[Tensor] = []
    skeleton = flatten(box.pop(), found)
    outputs += plain(found)
    if returned is not None:
        returned += found
    return skeleton, outputs


def _pick(outputs: list[Tensor], places: dict[int, Tensor]) -> list[Tensor]:
    """Copy elements at known places; outputs of a size that has none yet are left out."""
    known = [output for output in outputs if output.is_cuda and output.numel() in places]
    return [output.take(places[output.numel()]) for output in known]
