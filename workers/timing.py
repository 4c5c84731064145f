"""Timing: interleaved blocks of reference and candidate, and what they add up to.

Counts, order, inputs and statistics belong to the judge alone. Each block of calls of one side lies beside a block of
the other, in turning order, on inputs that were drawn for it; some outputs of timed calls, chosen in secret while the
calls run, are compared with the reference.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from drkernel_q.evaluation import Baseline, BaselineTiming, Outcome, Timing
from workers import correctness
from workers.reference import Reference
from workers.session import Session, pack_inputs
from workers.shared import Segment, unflatten
from workers.stopwatch import Stopwatch

#: Most bytes of inputs that are drawn for one block, unless the fewest sets need more.
INPUT_BUDGET_BYTES = 512 * 2**20
#: Fewest different sets of inputs in a block.
FEWEST_SETS = 3
#: Warm-up of each side, seconds and calls at least.
WARM_UP_S = {"cuda": 0.2, "cpu": 0.0}
WARM_UP_CALLS = {"cuda": 5, "cpu": 1}
#: Resamples of the bootstrap; 95 % interval.
RESAMPLES = 2000
_LOW, _HIGH = 2.5, 97.5


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


class Side(Protocol):
    """Something whose calls can be timed on one set of the current inputs."""

    def timed(self, index: int) -> float:
        """Time one call on set `index`, milliseconds."""
        ...


class Inputs:
    """The sets of inputs of the current block: the judge's own on the device, and copies for the candidate to read."""

    def __init__(self, reference: Reference, count: int) -> None:
        """Draw `count` first sets."""
        self.reference = reference
        self.seeds = [secrets.randbits(63) for _ in range(count)]
        packed = [pack_inputs(reference.inputs(seed)) for seed in self.seeds]
        stride = packed[0][3]
        self.skeletons = [skeletons for skeletons, _, _, _ in packed]
        self.tensors = [tensors for _, tensors, _, _ in packed]
        self.specs = [
            [spec._replace(offset=spec.offset + number * stride) for spec in specs]
            for number, (_, _, specs, _) in enumerate(packed)
        ]
        self.segment = Segment.create(stride * count, ours=True)
        self._publish()

    def refresh(self) -> None:
        """Draw every set anew."""
        for number in range(len(self.seeds)):
            self.seeds[number] = secrets.randbits(63)
            _, self.tensors[number], _, _ = pack_inputs(self.reference.inputs(self.seeds[number]))
        self._publish()

    def _publish(self) -> None:
        for specs, tensors in zip(self.specs, self.tensors, strict=True):
            self.segment.write(specs, tensors)


class ReferenceSide:
    """One baseline of the reference, timed in the judge as the candidate is timed in its process."""

    def __init__(self, reference: Reference, baseline: Baseline, inputs: Inputs, stopwatch: Stopwatch) -> None:
        """Allocate input buffers of its own."""
        self.reference = reference
        self.baseline = baseline
        self.inputs = inputs
        self.stopwatch = stopwatch
        self.slots = [[tensor.clone() for tensor in inputs.tensors[0]] for _ in range(FEWEST_SETS)]
        self.slot = 0

    def timed(self, index: int) -> float:
        """Time one call on set `index`, milliseconds."""
        self.slot = (self.slot + 1) % len(self.slots)
        tensors = self.slots[self.slot]
        for tensor, fresh in zip(tensors, self.inputs.tensors[index], strict=True):
            tensor.copy_(fresh)
        values = [unflatten(skeleton, tensors) for skeleton in self.inputs.skeletons[index]]
        return self.stopwatch.time(lambda: self.reference.run(values, self.baseline))[0]


class CandidateSide:
    """The candidate, timed by its harness; keeps snapshots of outputs that are chosen only after their call."""

    def __init__(self, session: Session, inputs: Inputs) -> None:
        """Show the candidate's process where inputs will appear."""
        self.session = session
        self.inputs = inputs
        self.expected_like = inputs.reference.expected(inputs.reference.inputs(inputs.seeds[0]))
        session.arm(inputs.segment, inputs.skeletons, inputs.specs)
        self.snapshots: list[tuple[int, list[Tensor]]] = []
        self.faults: list[str] = []

    def timed(self, index: int) -> float:
        """Time one call on set `index`, milliseconds, as the candidate's process claims."""
        return self.session.timed(index)

    def keep(self, index: int) -> None:
        """Take the outputs of the call just made on set `index`."""
        answer = self.session.snapshot(self.expected_like)
        if answer.outputs is None:
            self.faults.append(answer.detail or "an output of another kind")
        else:
            self.snapshots.append((self.inputs.seeds[index], answer.outputs))

    def check(self) -> int:
        """Compare the snapshots with the reference; return how many there were."""
        reference = self.inputs.reference
        count = len(self.snapshots)
        for seed, outputs in self.snapshots:
            result = correctness.compare(reference.expected(reference.inputs(seed)), outputs)
            if result.outcome is not Outcome.CORRECT:
                self.faults.append(result.detail or result.outcome.value)
        self.snapshots.clear()
        return count


def time_both(
    session: Session, reference: Reference, baselines: Sequence[Baseline], budget_s: float
) -> tuple[Timing, list[str]]:
    """Time the candidate against every baseline; return the timing, and what was wrong with checked outputs."""
    device = reference.device
    stopwatch = Stopwatch(device)
    size = max(pack_inputs(reference.inputs(secrets.randbits(63)))[3], 1)
    inputs = Inputs(reference, min(max(INPUT_BUDGET_BYTES // size, FEWEST_SETS), 18))
    candidate = CandidateSide(session, inputs)
    references = {name: ReferenceSide(reference, name, inputs, stopwatch) for name in baselines}
    sides: list[Side] = [*references.values(), candidate]
    counts = plan(device, sum(_warm_up(side, device) for side in sides), budget_s)
    times: dict[int, list[list[float]]] = {id(side): [] for side in sides}
    checked = 0
    for block in range(counts.blocks):
        inputs.refresh()
        for side in sides if block % 2 == 0 else reversed(sides):
            last = block == counts.blocks - 1
            times[id(side)].append(_run_block(side, counts, len(inputs.seeds), check_last=last))
        checked += candidate.check()
    timing = summarize({name: times[id(references[name])] for name in baselines}, times[id(candidate)], checked)
    return timing, candidate.faults


def _warm_up(side: Side, device: str) -> float:
    """Call until warm; return the wall seconds of the last call by the judge's clock."""
    start = time.perf_counter()
    calls = 0
    seconds = 0.0
    while calls < WARM_UP_CALLS[device] or time.perf_counter() - start < WARM_UP_S[device]:
        before = time.perf_counter()
        side.timed(calls % FEWEST_SETS)
        seconds = time.perf_counter() - before
        calls += 1
    return seconds


def _run_block(side: Side, counts: Plan, sets: int, *, check_last: bool) -> list[float]:
    for _ in range(counts.settle):
        side.timed(secrets.randbelow(sets))
    chosen = {secrets.randbelow(counts.calls)} | ({counts.calls - 1} if check_last else set())
    order = list(range(sets)) * -(-counts.calls // sets)
    secrets.SystemRandom().shuffle(order)
    milliseconds = []
    for number in range(counts.calls):
        milliseconds.append(side.timed(order[number]))
        if number in chosen and isinstance(side, CandidateSide):
            side.keep(order[number])
    return milliseconds


def speedup_interval(
    reference: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], *, seed: int = 0
) -> tuple[float, float, float]:
    """Return speedup and its 95 % interval from blocks of milliseconds; block i of one side lay beside the other's.

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


def summarize(references: dict[Baseline, list[list[float]]], candidate: list[list[float]], checked: int) -> Timing:
    """Turn blocks of milliseconds into the timing of an evaluation; the first baseline is the headline."""
    rows = []
    for baseline, blocks in references.items():
        speedup, low, high = speedup_interval(blocks, candidate)
        rows.append(
            BaselineTiming(
                baseline=baseline,
                reference_ms=float(np.median(np.concatenate(blocks))),
                speedup=speedup,
                speedup_low=low,
                speedup_high=high,
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
