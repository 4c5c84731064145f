"""Authorship: what a profile says about who did the work of a call, and whether its clock saw all of it.

A part of `drkernel_q.rules`, which applies these rules with all others.
"""

from collections.abc import Iterator

from drkernel_q.evaluation import Evaluation, Protocol
from drkernel_q.observation import Evidence, Observations, Probe, Weight
from drkernel_q.profile import Origin, Profile

#: Own share of the device time below which kernels are taken for decoration where nobody could leave them out.
LEAST_SHARE = 0.1
#: Share of the time of each of the reference's kernels that a call may spend in them and still replace something.
MOST_UNREPLACED = 0.5
#: Share of the device time that libraries may take past torch, where nobody expects them.
MOST_PAST_TORCH = 0.1
#: Work before a call's clock can have started: what may be noise, microseconds, and as a share of the call.
MOST_EARLY_US, MOST_EARLY = 20.0, 0.1
#: How much longer than claimed the device may have been busy with a call: microseconds, and as a factor.
MOST_OVER_US, MOST_OVER = 20.0, 1.25


def nothing_own(evaluation: Evaluation, observed: Observations, protocol: Protocol) -> Iterator[Evidence]:
    """No kernel of the candidate's took device time."""
    profile = evaluation.profile
    if protocol.backend == "any" or profile is None or profile.profile_ratio is None or profile.launches:
        return
    if protocol.backend == "triton" and observed.timed_calls > observed.idle_calls:
        yield _hard("A7", "Triton launches were counted, but no kernel of the candidate took device time")
    elif protocol.backend == "cuda":
        elsewhere = [mode for mode, call in observed.modes.items() if call.on_device]
        if elsewhere:
            yield _hard("A9", f"kernels of the candidate run in {elsewhere[0]}() and not in {protocol.mode}()")
        else:
            yield _hard("A1", "no Triton or CUDA C++ kernel of the candidate took device time")
    if _us(profile, Origin.COMPILER):
        yield _hard("A22", "the kernels that ran are torch.compile's and not the candidate's")


def decoration(evaluation: Evaluation, observed: Observations, protocol: Protocol) -> Iterator[Evidence]:
    """Own kernels take next to no time, and nobody saw what the outputs would be without them."""
    profile = evaluation.profile
    if protocol.backend == "any" or profile is None or profile.profile_ratio is None or not profile.launches:
        return
    left_out = observed.probes.get(Probe.ABLATION, "nobody tried") == ""
    if profile.profile_ratio < LEAST_SHARE and not left_out:
        share = f"{profile.profile_ratio:.1%} of the device time is the candidate's own"
        yield _soft("A5", f"{share}, and its launches could not be left out to see what they are for")


def nothing_replaced(evaluation: Evaluation, _: Observations, protocol: Protocol) -> Iterator[Evidence]:
    """All that the reference has torch do is done by torch still, and own kernels come on top of it."""
    profile = evaluation.profile
    if protocol.backend == "any" or profile is None or profile.unreplaced is None or not profile.launches:
        return
    if profile.unreplaced > MOST_UNREPLACED:
        share = f"{profile.unreplaced:.0%} of its time in the reference, or more"
        yield _soft("A6", f"every kernel of the reference is run by torch still, for {share}: nothing was replaced")


def compiled(evaluation: Evaluation, _: Observations, protocol: Protocol) -> Iterator[Evidence]:
    """torch.compile wrote more of what ran than the candidate."""
    profile = evaluation.profile
    if protocol.backend == "any" or profile is None or not profile.launches:
        return
    theirs, own = _us(profile, Origin.COMPILER), _us(profile, Origin.CANDIDATE)
    if theirs > own:
        yield _soft("A22", f"kernels of torch.compile take {theirs:.4g} us of a call, the candidate's own {own:.4g} us")


def past_torch(evaluation: Evaluation, _: Observations, protocol: Protocol) -> Iterator[Evidence]:
    """A library was called past torch; the nodes of a graph do not say by whom they were launched."""
    profile = evaluation.profile
    if protocol.backend == "any" or profile is None:
        return
    hidden = [row for row in profile.kernels if row.origin is Origin.LIBRARY and not row.operator and not row.graph]
    time_us = sum(row.device_us for row in hidden)
    if hidden and time_us > MOST_PAST_TORCH * profile.device_us:
        yield _soft("A21", f"kernels of libraries that no operator of torch launched: {hidden[0].name}")


def early(evaluation: Evaluation, _: Observations, __: Protocol) -> Iterator[Evidence]:
    """The device worked for a call while it was kept busy before the call's clock started."""
    profile = evaluation.profile
    if profile is None or profile.early_us is None:
        return
    if profile.early_us > max(MOST_EARLY_US, MOST_EARLY * (profile.busy_us or 0.0)):
        yield _hard("D1", f"the device worked {profile.early_us:.4g} us for a call before its clock can have started")


def longer(evaluation: Evaluation, _: Observations, __: Protocol) -> Iterator[Evidence]:
    """The device was busy with a call for longer than the call is said to take."""
    profile, timing = evaluation.profile, evaluation.timing
    if profile is None or timing is None or profile.busy_us is None or evaluation.environment.device_type == "cpu":
        return
    claimed_us = timing.candidate_ms * 1e3
    if profile.busy_us > MOST_OVER * claimed_us + MOST_OVER_US:
        detail = f"the device was busy {profile.busy_us:.4g} us with a call that was timed with {claimed_us:.4g} us"
        yield _soft("D1" if (profile.streams or 0) > 1 else "D10", detail)


def while_timed(_: Evaluation, observed: Observations, __: Protocol) -> Iterator[Evidence]:
    """Kernels were compiled, or variants tried, in calls that count."""
    if observed.compiled_calls:
        detail = f"in {observed.compiled_calls} timed calls after the warm-up a Triton kernel was compiled or loaded"
        yield Evidence(code="A16", weight=Weight.NOTE, detail=detail)


#: All of them.
RULES = (nothing_own, decoration, nothing_replaced, compiled, past_torch, early, longer, while_timed)


def _us(profile: Profile, origin: Origin) -> float:
    return sum(row.device_us for row in profile.kernels if row.origin is origin)


def _hard(code: str, detail: str) -> Evidence:
    return Evidence(code=code, weight=Weight.HARD, detail=detail)


def _soft(code: str, detail: str) -> Evidence:
    return Evidence(code=code, weight=Weight.SOFT, detail=detail)
