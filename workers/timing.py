"""Timing: interleaved blocks of reference and candidate, and what they add up to.

Counts, order, inputs and statistics belong to the judge alone. Each block of calls of one side lies beside a block of
the other, in turning order, on inputs that were drawn for it; some outputs of timed calls, chosen in secret while the
calls run, are compared with the reference.
"""

import secrets
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from drkernel_q.artefact import Burst
from drkernel_q.correctness import Precision
from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Baseline, BaselineTiming, Outcome, Timing, side_name
from drkernel_q.rules import hidden_ms
from drkernel_q.speedup import speedup_interval
from workers import correctness, integrity
from workers.measure import Expected, outline
from workers.reference import Reference
from workers.session import LARGE_BYTES, Answer, Session, pack_inputs
from workers.shared import ALIGN, Segment, TensorSpec, unflatten
from workers.stopwatch import Stopwatch

#: What the candidate is compared with: a baseline, and the arithmetic of its products.
Version = tuple[Baseline, Precision]
#: Buffers that the inputs of timed calls take turns over, and as many outputs are checked in each block; one when
#: inputs have more than `LARGE_BYTES`, since both processes hold several times that.
SLOTS = 3
#: Warm-up of each side, seconds and calls at least.
WARM_UP_S = {"cuda": 0.2, "cpu": 0.0}
WARM_UP_CALLS = {"cuda": 5, "cpu": 1}
#: Two-clock rule: calls of the shorter burst, repeats, and calls so slow that one is enough.
BURST = {"cuda": 6, "cpu": 2}
SHORTEST_BURST = 3
BURSTS = 3
SLOW_MS = 300.0
#: Noise of the judge's clock that is always allowed, and measurements before a claim that lacks more counts as a lie.
FLOOR_NOISE_MS = {"cuda": 0.08, "cpu": 2.0}
CLOCK_CHECKS = 3
#: Most bytes of inputs of one burst.
BURST_BYTES = 4 * 2**30


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


def slots_for(size_bytes: int) -> int:
    """Return how many buffers inputs of this size take turns over."""
    return SLOTS if size_bytes <= LARGE_BYTES else 1


class Side(Protocol):
    """Something whose calls can be timed."""

    def timed(self) -> float:
        """Draw fresh inputs and time one call on them, milliseconds."""
        ...


class Bursting(Protocol):
    """Something that can make timed calls in a row."""

    @property
    def most_calls(self) -> int:
        """Longest burst that its inputs leave room for."""
        ...

    def burst(self, calls: int) -> float:
        """Make `calls` timed calls; return the seconds that passed on the judge's clock."""
        ...


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
        for outputs in self.stopwatch.burst([lambda: self.outputs] * calls):
            for output in outputs:
                integrity.checksum(output)
        return time.perf_counter() - start


class ReferenceSide:
    """One version of the reference, timed in the judge as the candidate is timed in its process."""

    def __init__(self, reference: Reference, version: Version, stopwatch: Stopwatch) -> None:
        """Allocate input buffers."""
        self.reference = reference
        self.version = version
        self.stopwatch = stopwatch
        first, size = pack_inputs(reference.inputs(secrets.randbits(63)))[1::2]
        self.slots = [[tensor.clone() for tensor in first] for _ in range(slots_for(size))]
        self.slot = 0
        self.late_ms: list[float] = []

    def timed(self) -> float:
        """Draw fresh inputs and time one call on them, milliseconds."""
        self.slot = (self.slot + 1) % len(self.slots)
        skeletons, fresh, _, _ = pack_inputs(self.reference.inputs(secrets.randbits(63)))
        tensors = self.slots[self.slot]
        for tensor, new in zip(tensors, fresh, strict=True):
            tensor.copy_(new)
        values = [unflatten(skeleton, tensors) for skeleton in skeletons]
        milliseconds, _ = self.stopwatch.time(lambda: self.reference.run(values, *self.version))
        self.late_ms.append(self.stopwatch.late_ms)
        return milliseconds


class CandidateSide:
    """The candidate, timed by its harness; keeps snapshots of outputs that are chosen only after their call.

    The inputs of a call come to lie where the candidate's process can read them right before the call, and no sooner.
    With its reply the process commits itself to the outputs by their checksums, so work put off until they are fetched
    is a lie that a snapshot shows.
    """

    def __init__(self, session: Session, reference: Reference) -> None:
        """Show the candidate's process where inputs will appear."""
        self.session = session
        self.reference = reference
        self.seed = secrets.randbits(63)
        inputs = reference.inputs(self.seed)
        self.expected_like = outline(reference.expected(inputs))
        self.skeletons, _, self.specs, self.size = pack_inputs(inputs)
        self.segment = Segment.create(self.size, ours=True)
        self.slots = slots_for(self.size)
        session.arm(self.segment, self.skeletons, self.specs, self.slots)
        self.sets: Segment | None = None
        self.last: Answer | None = None
        self.seeds: dict[str, list[int]] = {"timed": [], "bursts": []}
        """Seeds of the inputs of all calls, in order."""
        self.calls: list[Answer] = []
        """What came with each timed call."""
        self.warm = 0
        """How many of them were made to warm up."""
        self.fetched: list[Answer] = []
        """What came with each snapshot."""
        self.snapshots: list[tuple[int, list[Tensor]]] = []
        self.faults: list[str] = []

    def timed(self) -> float:
        """Draw fresh inputs and time one call on them, milliseconds, as the candidate's process claims."""
        self.seed = secrets.randbits(63)
        self.seeds["timed"].append(self.seed)
        self._put(self.segment, self.specs, self.seed)
        milliseconds, self.last = self.session.timed()
        self.calls.append(self.last)
        return milliseconds

    def _put(self, segment: Segment, places: Sequence[TensorSpec], seed: int) -> None:
        _, tensors, specs, _ = pack_inputs(self.reference.inputs(seed))
        if specs != self.specs:
            raise BadProblem(f"get_inputs() of {self.reference.name} draws other shapes under another seed.")
        segment.write(places, tensors)

    @property
    def most_calls(self) -> int:
        """Longest burst that the sets of inputs leave room for."""
        return BURST_BYTES // max(self.size, 1)

    def burst(self, calls: int) -> float:
        """Let the candidate make timed calls on fresh inputs in a row; return the seconds by the judge's clock."""
        stride = -(-self.size // ALIGN) * ALIGN
        if self.sets is None or self.sets.size < stride * calls:
            self.sets = Segment.create(stride * calls, ours=True)
        seeds = [secrets.randbits(63) for _ in range(calls)]
        self.seeds["bursts"] += seeds
        sets = [[spec._replace(offset=spec.offset + stride * number) for spec in self.specs] for number in range(calls)]
        for seed, places in zip(seeds, sets, strict=True):
            self._put(self.sets, places, seed)
        self.session.preload(self.sets, sets)
        seconds, checksums = self.session.burst()
        chosen = secrets.randbelow(calls)
        self._keep(seeds[chosen], checksums[chosen] if len(checksums) == calls else (), chosen)
        return seconds

    def keep(self) -> None:
        """Take the outputs of the call just made."""
        assert self.last is not None
        self._keep(self.seed, self.last.checksums, 0)

    def _keep(self, seed: int, checksums: tuple[int, ...], index: int) -> None:
        answer = self.session.snapshot(self.expected_like, index)
        self.fetched.append(answer)
        if answer.outputs is None:
            self.faults.append(answer.detail or "an output of another kind")
        elif tuple(map(integrity.checksum, answer.outputs)) != checksums:
            self.faults.append("the outputs are others than those that the process committed itself to")
        else:
            self.snapshots.append((seed, answer.outputs))

    def check(self) -> int:
        """Compare the snapshots with the reference; return how many there were."""
        count = len(self.snapshots)
        for seed, outputs in self.snapshots:
            result = correctness.compare(self.reference.expected(self.reference.inputs(seed)), outputs)
            if result.outcome is not Outcome.CORRECT:
                self.faults.append(result.detail or result.outcome.value)
        self.snapshots.clear()
        return count

    def close(self) -> None:
        """Give back the memory that was shared."""
        for segment in (self.segment, self.sets):
            if segment is not None:
                segment.close()


class Race(NamedTuple):
    """What came of timing both sides."""

    timing: Timing
    clock: "Clock | None"
    """The judge's own, over bursts of calls; None where inputs leave no room for these."""
    late_ms: float
    """Median time that the device went on working after a call's last event, beyond what the reference shows."""
    blocks: dict[str, list[list[float]]]
    """Milliseconds of each call of each block, by side: versions by name, and `candidate`."""
    reference_late_ms: list[float]
    """As `late_ms`, of each call of the first version."""


def time_both(candidate: CandidateSide, versions: Sequence[Version], budget_s: float) -> Race:
    """Time the candidate against every version, and hold its claims against the judge's own clock."""
    reference = candidate.reference
    device = reference.device
    stopwatch = Stopwatch(device)
    references = {version: ReferenceSide(reference, version, stopwatch) for version in versions}
    sides: list[Side] = [*references.values(), candidate]
    counts = plan(device, sum(_warm_up(side, device) for side in sides), budget_s)
    candidate.warm = len(candidate.calls)
    times: dict[int, list[list[float]]] = {id(side): [] for side in sides}
    checked = 0
    for block in range(counts.blocks):
        for side in sides if block % 2 == 0 else reversed(sides):
            last = block == counts.blocks - 1
            times[id(side)].append(_run_block(side, counts, snapshots=candidate.slots, check_last=last))
        checked += candidate.check()
    own = times[id(candidate)]
    beside = {version: times[id(side)] for version, side in references.items()}
    timing = summarize(beside, own, checked)
    blocks = {side_name(*version): side for version, side in beside.items()} | {"candidate": own}
    first = references[versions[0]]
    late_ms = float(np.median([answer.late_ms for answer in candidate.calls])) - float(np.median(first.late_ms))
    if candidate.most_calls < SHORTEST_BURST:  # such inputs would not fit three times, and such calls take long
        return Race(timing, None, late_ms, blocks, first.late_ms)
    empty = EmptySide(stopwatch, candidate.expected_like, device)
    for _ in range(CLOCK_CHECKS):
        clock = judge_clock(candidate, empty, device, timing.candidate_ms)
        if not hidden_ms(device, timing.candidate_ms, clock.least_ms, clock.noise_ms):
            break
    checked += candidate.check()
    timing = timing.model_copy(update={"judge_ms": clock.median_ms, "checked": checked})
    return Race(timing, clock, late_ms, blocks, first.late_ms)


class Clock(NamedTuple):
    """One candidate call by the judge's own clock."""

    median_ms: float
    least_ms: float
    """The smallest of the repeats: whatever else the machine did, a call took no less."""
    noise_ms: float
    """How far that may be off."""
    bursts: tuple[Burst, ...]
    """What was measured."""


def judge_clock(candidate: Bursting, empty: Bursting, device: str, claimed_ms: float) -> Clock:
    """Time one candidate call by the judge's clock (the two-clock rule).

    The clock sees bursts of k and 3k calls; the slope between them leaves out what a request costs, and the slope of
    empty calls leaves out flush, spin, synchronization and checksums.
    """
    few = min(BURST[device], candidate.most_calls // 3) if claimed_ms < SLOW_MS else 1

    bursts: list[Burst] = []

    def seconds(name: str, side: Bursting, calls: int) -> float:
        bursts.append(Burst(side=name, calls=calls, seconds=side.burst(calls)))
        return bursts[-1].seconds

    def slope(name: str, side: Bursting) -> float:
        return (seconds(name, side, 3 * few) - seconds(name, side, few)) / (2 * few) * 1e3

    pairs = [(slope("candidate", candidate), slope("empty", empty)) for _ in range(BURSTS)]
    both, base = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    net = [slope - float(np.median(base)) for slope in both]
    noise_ms = float(np.ptp(base)) + FLOOR_NOISE_MS[device]
    return Clock(max(float(np.median(net)), 0.0), max(min(net), 0.0), noise_ms, tuple(bursts))


def _warm_up(side: Side, device: str) -> float:
    """Call until warm; return the wall seconds of the last call by the judge's clock."""
    start = time.perf_counter()
    calls = 0
    seconds = 0.0
    while calls < WARM_UP_CALLS[device] or time.perf_counter() - start < WARM_UP_S[device]:
        before = time.perf_counter()
        side.timed()
        seconds = time.perf_counter() - before
        calls += 1
    return seconds


def _run_block(side: Side, counts: Plan, *, snapshots: int, check_last: bool) -> list[float]:
    for _ in range(counts.settle):
        side.timed()
    chosen = set(secrets.SystemRandom().sample(range(counts.calls), min(snapshots, counts.calls)))
    if check_last:
        chosen.add(counts.calls - 1)
    milliseconds = []
    for number in range(counts.calls):
        milliseconds.append(side.timed())
        if number in chosen and isinstance(side, CandidateSide):
            side.keep()
    return milliseconds


def summarize(references: dict[Version, list[list[float]]], candidate: list[list[float]], checked: int) -> Timing:
    """Turn blocks of milliseconds into the timing of an evaluation; the first version is the headline."""
    rows = []
    for (baseline, precision), blocks in references.items():
        speedup, low, high = speedup_interval(blocks, candidate)
        rows.append(
            BaselineTiming(
                baseline=baseline,
                precision=precision,
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
