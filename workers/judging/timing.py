"""Timing: interleaved blocks of reference and candidate, and what they add up to.

Counts, order, inputs and statistics belong to the judge alone. Each block of calls of one side lies beside a block of
the other, in turning order, on inputs that were drawn for each call; outputs of timed calls, drawn by the judge, are
compared with the reference.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from drkernel_q.evaluation import BaselineTiming, Timing, side_name
from drkernel_q.rules import is_adrift
from drkernel_q.speedup import measured_speedup
from workers.comparison.reference import Reference
from workers.exchange.stopwatch import Stopwatch
from workers.judging import clock
from workers.judging.clock import Clock
from workers.judging.side import CandidateSide, ReferenceSide, Side, Version

#: Warm-up of each side, seconds and calls at least.
WARM_UP_S = {"cuda": 0.01, "cpu": 0.0}
WARM_UP_CALLS = {"cuda": 6, "cpu": 1}
#: Seconds of calls of all sides before the first block: the device may have been idle since they were warm, and slow.
WAKING_S = {"cuda": 0.01, "cpu": 0.0}
#: Races until the reference's own time is steady from the first block to the last: a device that was idle speeds up.
RACES = 3
#: The reference is called once for so many calls of the candidate: its times scatter less than they cost.
REFERENCE_SHARE = {"cuda": 2, "cpu": 1}
#: One block of so many is interrupted by a call that is no timed one, at a place that nobody knows.
INTERRUPTED = 2
#: Calls of the reference with no candidate around.
ALONE_CALLS = 15


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
    blocks, most, least, settle = (6, 17, 4, 1) if device == "cuda" else (5, 10, 2, 1)
    calls = int(budget_s / max(seconds_a_round, 1e-9) / blocks) - settle
    if calls < least:
        blocks, settle = 3, 1
    return Plan(blocks, max(min(calls, most), least), settle)


class Race(NamedTuple):
    """What came of timing both sides."""

    timing: Timing
    clock: Clock | None
    """The judge's own, over bursts of calls; None where inputs leave no room for these."""
    late_ms: float
    """Median time that the device went on working after a call's last event, beyond what the reference shows."""
    blocks: dict[str, list[list[float]]]
    """Milliseconds of each call of each block, by side: versions by name, and `candidate`."""
    reference_late_ms: list[float]
    """As `late_ms`, of each call of the first version."""
    durations_s: dict[str, float]
    """Seconds of the parts of it all."""


class Lineup(NamedTuple):
    """Both sides, warm and ready to be timed."""

    candidate: CandidateSide
    references: Mapping[Version, ReferenceSide]
    stopwatch: Stopwatch
    seconds_a_round: float
    """By the judge's own clock: one call of every side, overhead included."""
    seconds: float
    """What it took."""


def line_up(candidate: CandidateSide, versions: Sequence[Version]) -> Lineup:
    """Make the sides of all versions and call every side until it is warm, which compiles what there is to compile."""
    device, start = candidate.reference.device, time.perf_counter()
    stopwatch = Stopwatch(device)
    references = {version: ReferenceSide(candidate.reference, version, stopwatch) for version in versions}
    sides: list[Side] = [*references.values(), candidate]
    rounds = [_warm_up(side, device) for side in sides]
    clock.warm_up(candidate, device, rounds[-1].milliseconds)
    seconds_a_round = sum(each.seconds for each in rounds)
    return Lineup(candidate, references, stopwatch, seconds_a_round, time.perf_counter() - start)


def race(lineup: Lineup, budget_s: float) -> Race:
    """Time the candidate against every version, and hold its claims against the judge's own clock."""
    candidate, references, stopwatch = lineup.candidate, lineup.references, lineup.stopwatch
    device = candidate.reference.device
    began_s = time.perf_counter()
    counts = plan(device, _wake(lineup), budget_s)
    candidate.warm = len(candidate.calls)
    for _ in range(RACES):
        times = _run(lineup, counts)
        own = times.pop(None)
        beside = {version: blocks for version, blocks in times.items() if version is not None}
        timing = summarize(beside, own)
        if not is_adrift(device, timing):
            break
    raced_s = time.perf_counter()
    first = next(iter(references.values()))
    late_ms = float(np.median([answer.late_ms for answer in candidate.calls])) - float(np.median(first.late_ms))
    reading = clock.read_until_agreed(candidate, stopwatch, device, timing.candidate_ms)
    timing = timing.model_copy(update={"judge_ms": reading and reading.call_ms, "checked": candidate.recheck.count})
    blocks = {side_name(*version): side for version, side in beside.items()} | {"candidate": own}
    durations_s = {
        "warm_up": lineup.seconds,
        "blocks": raced_s - began_s,
        "clock": time.perf_counter() - raced_s,
    }
    return Race(timing, reading, late_ms, blocks, first.late_ms, durations_s)


def _wake(lineup: Lineup) -> float:
    """Call every side for a while; return the seconds of the quickest round, or of that at the line-up."""
    sides: list[Side] = [*lineup.references.values(), lineup.candidate]
    device, quickest_s = lineup.candidate.reference.device, lineup.seconds_a_round
    start = now = time.perf_counter()
    while now - start < WAKING_S[device]:
        for side in sides:
            side.timed()
        before, now = now, time.perf_counter()
        quickest_s = min(quickest_s, now - before)
    return quickest_s


def _run(lineup: Lineup, counts: Plan) -> dict[Version | None, list[list[float]]]:
    """Run all blocks; return the milliseconds of each call of each block, those of the candidate under None."""
    candidate, device = lineup.candidate, lineup.candidate.reference.device
    sides: list[tuple[Version | None, Side]] = [*lineup.references.items(), (None, candidate)]
    times: dict[Version | None, list[list[float]]] = {version: [] for version, _ in sides}
    for block in range(counts.blocks):
        for version, side in sides if block % 2 == 0 else reversed(sides):
            calls = counts.calls if side is candidate else -(-counts.calls // REFERENCE_SHARE[device])
            times[version].append(_run_block(side, counts.settle, calls))
    return times


def time_alone(reference: Reference, version: Version) -> float:
    """Return the reference's median time, milliseconds, when no candidate is there to slow it down."""
    side = ReferenceSide(reference, version, Stopwatch(reference.device))
    for _ in range(WARM_UP_CALLS[reference.device]):
        side.timed()
    return float(np.median([side.timed() for _ in range(ALONE_CALLS)]))


class Call(NamedTuple):
    """One timed call."""

    milliseconds: float
    """What it took by itself."""
    seconds: float
    """What it took by the judge's clock, with all that surrounds it."""


def _warm_up(side: Side, device: str) -> Call:
    """Call until warm; return the last call."""
    start = now = time.perf_counter()
    calls, last = 0, Call(0.0, 0.0)
    while calls < WARM_UP_CALLS[device] or now - start < WARM_UP_S[device]:
        before, milliseconds = now, side.timed()
        calls, now = calls + 1, time.perf_counter()
        last = Call(milliseconds, now - before)
    return last


def _run_block(side: Side, settle: int, calls: int) -> list[float]:
    for _ in range(settle):
        side.timed()
    times, place = [], secrets.randbelow(INTERRUPTED * calls)
    for number in range(calls):
        if number == place:
            side.interrupt()
        times.append(side.timed())
    return times


def summarize(references: dict[Version, list[list[float]]], candidate: list[list[float]]) -> Timing:
    """Turn blocks of milliseconds into the timing of an evaluation; the first version is the headline."""
    rows = []
    for (baseline, precision), blocks in references.items():
        speedup, low, high = measured_speedup(blocks, candidate)
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
        checked=0,
        baselines=tuple(rows),
    )


def _drift(blocks: list[list[float]]) -> float:
    first, last = np.median(blocks[0]), np.median(blocks[-1])
    return float(abs(last / first - 1.0))
