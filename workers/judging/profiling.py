"""Profiling: calls that are timed as all others are while their process records its device, and what comes of it.

The recording is made in the candidate's process, so it is a claim. It has to be whole by its own evidence (marks at
both ends, a kernel for each launch), to hold as many calls as were asked for, and to show as much time as these took.
"""

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from statistics import median
from typing import NamedTuple

from drkernel_q.evaluation import Protocol
from drkernel_q.profile import Origin, Profile
from workers.comparison.reference import Reference
from workers.exchange.trace import Row, Trace
from workers.harness.profiler import Profiler
from workers.judging.answer import Answer
from workers.judging.attribution import MAX_NAME, Identity, attribute, own_names
from workers.judging.claim import CandidateFailed
from workers.judging.recording import Recording
from workers.judging.side import CandidateSide

#: Profiled forward passes, and how often they are made anew when the recording is not whole.
PROFILED_CALLS = {"cuda": 10, "cpu": 2}
REFERENCE_CALLS = 3
RETRIES = 2
#: Share of a call's time that a recording may lack, and microseconds that it always may.
MOST_LACKING, FLOOR_LACKING_US = 0.25, 20.0


class Examination(NamedTuple):
    """What the profiled calls showed."""

    profile: Profile
    rows: tuple[Row, ...]
    """What the process recorded, before anybody said whose it is."""
    launches: int
    """Launches of the candidate's own Triton functions in the profiled calls, as counted by Triton."""
    others: tuple[str, ...] | None = None
    """Own kernels that ran in a call in the mode that is not scored; None where that was not recorded."""


class Around(NamedTuple):
    """What surrounds the parts of an examination."""

    recording: Callable[[], AbstractContextManager[None]]
    """The start and the end of a recording, which take time and measure none."""
    calls: Callable[[], AbstractContextManager[None]]
    """Calls whose time is looked at."""


def examine(
    candidate: CandidateSide,
    protocol: Protocol,
    claimed_ms: float | None,
    around: Around,
    *,
    both_modes: bool = False,
) -> Examination:
    """Profile some calls of the candidate and check what they give; `claimed_ms` is what it was timed with, if it was.

    A recording that is not whole is made again; the last one stands, with its fault and without a ratio. With
    `both_modes` a call in the mode that is not scored is recorded too, on a device that has kernels.
    """
    device, others = candidate.reference.device, None
    calls = PROFILED_CALLS[device]
    for _ in range(1 + RETRIES):
        with around.recording():
            candidate.timed()  # as the first of a session, the next call would pay for its start
            candidate.warm = candidate.warm or len(candidate.calls)
            candidate.session.start_profile(train=candidate.reference.train)
        before = len(candidate.calls)
        with around.calls():
            times = [candidate.timed() for _ in range(calls)]
        made = candidate.calls[before:]
        with around.recording():
            if both_modes and device == "cuda":
                _call_in_other_mode(candidate)
            recording = candidate.session.stop_profile()
        trace = recording.trace
        if trace.fault is None:
            # What the calls themselves took, if that is less: one that waits for the host takes no two times the same.
            claimed = min(claimed_ms or inf, median(times))
            fault = fault_of(trace, calls, claimed) if device == "cuda" else host_fault_of(trace, made)
            trace = trace._replace(fault=fault)
        own = _own(candidate, recording, protocol)
        profile = attribute(trace, own, calls)
        if both_modes and device == "cuda":
            others = own_names(attribute(trace._replace(rows=trace.others), own, 1))
        if profile.fault is None:
            break
    if profile.fault is None and protocol.backend != "any" and not candidate.reference.train:
        share: float | None = 0.0
        if has_others(profile):
            with around.calls():
                share = unreplaced(profile, time_reference(candidate.reference))
        profile = profile.model_copy(update={"unreplaced": share})
    return Examination(profile, trace.rows, sum(answer.own_launches for answer in made), others)


def _call_in_other_mode(candidate: CandidateSide) -> None:
    """Make one call in the mode that is not scored, which may fail as long as the process lives."""
    reference, session = candidate.reference, candidate.session
    inputs = reference.inputs(secrets.randbits(63))
    try:
        session.call(inputs, candidate.expected_like, train=not reference.train)
    except CandidateFailed:
        if session.remote.is_lost:
            raise


def has_others(profile: Profile) -> bool:
    """Whether kernels ran that are not the candidate's."""
    return any(kernel.origin not in (Origin.CANDIDATE, Origin.MEMORY) for kernel in profile.kernels)


def time_reference(reference: Reference) -> dict[str, float]:
    """Return the microseconds of a call of the reference in each kernel, by name; nothing if that cannot be recorded.

    On the CPU device operators of torch take the place of kernels.
    """
    inputs = reference.inputs(secrets.randbits(63))
    profiler = Profiler(reference.device)
    profiler.start()
    reference.run(inputs)  # as the first of a session, the next call would pay for its start
    for _ in range(REFERENCE_CALLS):
        with profiler.call():
            reference.run(inputs)
    trace = profiler.stop()
    times: defaultdict[str, float] = defaultdict(float)
    for row in trace.rows if trace.fault is None else ():
        if not row.memory:
            times[row.name[:MAX_NAME]] += row.device_us / REFERENCE_CALLS
    return dict(times)


def unreplaced(profile: Profile, reference_us: Mapping[str, float]) -> float | None:
    """Return the least share that torch still has of the time of one of the reference's kernels."""
    theirs: defaultdict[str, float] = defaultdict(float)
    for kernel in profile.kernels:
        if kernel.origin not in (Origin.CANDIDATE, Origin.MEMORY):
            theirs[kernel.name] += kernel.device_us
    shares = (min(theirs[name] / time_us, 1.0) for name, time_us in reference_us.items() if time_us > 0)
    return min(shares, default=None)


def fault_of(trace: Trace, calls: int, claimed_ms: float) -> str | None:
    """Say what the recording of a device lacks of what is known of the calls otherwise."""
    if len(trace.spans) != calls:
        return f"{len(trace.spans)} calls were recorded, {calls} were made"
    window_us = median(span.window_us for span in trace.spans)
    if window_us < (1 - MOST_LACKING) * claimed_ms * 1e3 - FLOOR_LACKING_US:
        return f"calls that take {claimed_ms * 1e3:.4g} us have {window_us:.4g} us in the recording"
    return None


def host_fault_of(trace: Trace, made: Sequence[Answer]) -> str | None:
    """Do the same on the CPU device, where time passes in Python too, and anybody can write down a launch."""
    if len(trace.spans) != len(made):
        return f"{len(trace.spans)} calls were recorded, {len(made)} were made"
    launches = sum(answer.own_launches + answer.other_launches for answer in made)
    recorded = sum(row.times for row in trace.rows if row.operator is None)
    return None if recorded <= launches else f"{recorded} launches were recorded, {launches} were made"


def _own(candidate: CandidateSide, recording: Recording, protocol: Protocol) -> frozenset[Identity]:
    """Return the kernels that count as the candidate's own."""
    if candidate.reference.device == "cpu":
        # All names since its first call, as of what was compiled: whatever is replayed was launched once.
        return frozenset(Identity(name) for answer in candidate.calls for name in answer.own_names)
    return recording.compiled if protocol.backend == "triton" else recording.compiled | recording.built
