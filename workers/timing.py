"""Timing: one call on a cold cache, and the statistics of interleaved blocks.

Both sides, reference and candidate, are timed by the same `Stopwatch` code in their own processes; counts, order,
inputs and statistics belong to the judge alone.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drkernel_q.evaluation import Baseline, BaselineTiming, Timing

#: Cache flush, bytes: more than four times the L2 of a large GPU; on the CPU about the size of a shared cache.
FLUSH_BYTES = {"cuda": 256 * 2**20, "cpu": 32 * 2**20}
#: Clock cycles that the device spins after the flush, so that the host has launched before the first event fires.
SPIN_CYCLES = 200_000
#: Resamples of the bootstrap; 95 % interval.
RESAMPLES = 2000
_LOW, _HIGH = 2.5, 97.5


class Stopwatch:
    """Times single calls on a cold cache."""

    def __init__(self, device: str) -> None:
        """Bind what is needed now, before code that could replace it has been loaded."""
        self._flush = torch.empty(FLUSH_BYTES[device], dtype=torch.uint8, device=device)
        self._clock = time.perf_counter
        self._cuda = device == "cuda"
        if self._cuda:
            # The C base class cannot be patched; torch.cuda.Event can.
            event = torch._C._CudaEventBase
            self._record, self._elapsed = event.record, event.elapsed_time
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._stream = torch.cuda.current_stream()
            self._sync = torch._C._cuda_synchronize
            self._spin = torch.cuda._sleep

    def time(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the milliseconds of one call and what it returned."""
        self._flush.zero_()
        if not self._cuda:
            start = self._clock()
            result = call()
            return (self._clock() - start) * 1e3, result
        self._spin(SPIN_CYCLES)
        start_event, end_event = self._events
        self._record(start_event, self._stream)
        result = call()
        self._record(end_event, self._stream)
        self._sync()
        return self._elapsed(start_event, end_event), result


class Plan(NamedTuple):
    """How many calls are timed."""

    blocks: int
    """Interleaved blocks a side."""
    calls: int
    """Timed calls a block."""
    settle: int
    """Untimed calls at the start of each block, since the first after a change of process is slow."""


def plan(device: str, seconds_a_round: float, budget_s: float) -> Plan:
    """Choose counts from the judge's own clock: `seconds_a_round` is one call of every side, overhead included."""
    blocks, most, least, settle = (6, 18, 4, 2) if device == "cuda" else (5, 10, 2, 1)
    calls = int(budget_s / max(seconds_a_round, 1e-9) / blocks) - settle
    if calls < least:
        blocks, settle = 3, 1
    return Plan(blocks, max(min(calls, most), least), settle)


def speedup_interval(
    reference: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], *, seed: int = 0
) -> tuple[float, float, float]:
    """Return speedup and its 95 % interval from blocks of milliseconds, block i of one side beside block i of the other.

    The estimate is exp(median over blocks of log(median reference / median candidate)); the interval resamples blocks,
    and calls within them, `RESAMPLES` times.
    """
    point = float(np.exp(np.median(_log_ratios(reference, candidate))))
    generator = np.random.default_rng(seed)
    blocks = len(reference)
    draws = np.empty((RESAMPLES, blocks))
    for index in range(blocks):
        sides = []
        for side in (reference[index], candidate[index]):
            values = np.asarray(side)
            picks = generator.integers(0, len(values), size=(RESAMPLES, len(values)))
            sides.append(np.median(values[picks], axis=1))
        draws[:, index] = np.log(sides[0] / sides[1])
    chosen = generator.integers(0, blocks, size=(RESAMPLES, blocks))
    medians = np.median(np.take_along_axis(draws, chosen, axis=1), axis=1)
    low, high = np.exp(np.percentile(medians, [_LOW, _HIGH]))
    return point, min(float(low), point), max(float(high), point)


def _log_ratios(reference: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]) -> np.ndarray[Any, Any]:
    pairs = zip(reference, candidate, strict=True)
    return np.array([np.log(np.median(first) / np.median(second)) for first, second in pairs])


def summarize(
    references: dict[Baseline, list[list[float]]], candidate: list[list[float]], checked: int
) -> Timing:
    """Turn blocks of milliseconds into the timing of an evaluation; the first baseline is the headline."""
    rows = []
    for baseline, blocks in references.items():
        speedup, low, high = speedup_interval(blocks, candidate)
        reference_ms = float(np.median(np.concatenate(blocks)))
        rows.append(
            BaselineTiming(
                baseline=baseline, reference_ms=reference_ms, speedup=speedup, speedup_low=low, speedup_high=high
            )
        )
    calls = np.concatenate(candidate)
    first = rows[0]
    return Timing(
        reference_ms=first.reference_ms,
        candidate_ms=float(np.median(calls)),
        candidate_iqr_ms=float(np.subtract(*np.percentile(calls, [75, 25]))),
        speedup=first.speedup,
        speedup_low=first.speedup_low,
        speedup_high=first.speedup_high,
        runs=len(calls),
        blocks=len(candidate),
        drift=max(_drift(blocks) for blocks in references.values()),
        checked=checked,
        baselines=tuple(rows),
    )


def _drift(blocks: list[list[float]]) -> float:
    first, last = np.median(blocks[0]), np.median(blocks[-1])
    return float(abs(last / first - 1.0))
