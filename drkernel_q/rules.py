"""Rules: what the facts of an evaluation amount to, for a judge and for whoever judges its facts again later.

A verdict follows from stored facts alone and says under which version of the rules it stands. What detectors saw keeps
the weight that they claim; numbers are weighed here. An observation that the stages of the protocol call for and that
is not there is a detector that failed: nothing is clean because nobody looked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from drkernel_q import authorship, physics
from drkernel_q.artefact import Artefacts
from drkernel_q.audit import Audit
from drkernel_q.evaluation import (
    UNVOUCHED,
    BaselineTiming,
    Evaluation,
    Integrity,
    Outcome,
    Protocol,
    Stage,
    Timing,
    Verdict,
    side_name,
)
from drkernel_q.observation import Evidence, Observations, Probe, Weight
from drkernel_q.speedup import Blocks, measured_speedup

#: Version of these rules; raised whenever the same facts may get another verdict.
RULES_VERSION = "1"

#: Work after the last event of a timed call: what may be noise, milliseconds, and as a share of the call.
MOST_LATE_MS, MOST_LATE = 0.04, 0.1
#: Share of a call by the judge's own clock that a claim may lack, by type of device.
MOST_HIDDEN = {"cuda": 0.3, "cpu": 0.6}
#: Share of the elements of floating-point outputs that the candidate's kernels must have a hand in.
LEAST_TOUCHED = 0.5
#: Change of a reference's median from the first block to the last that leaves no trust in the speedup: as a fraction,
#: and milliseconds below which an event's resolution may be the cause. Clocks of the cpu device are everybody's.
MOST_DRIFT, LEAST_DRIFT_MS = 0.05, 0.002
#: How much slower the reference may be beside a candidate than alone, as a factor and milliseconds of noise.
MOST_SLOWED = {"cuda": 1.1, "cpu": 3.0}
SLOWED_NOISE_MS = {"cuda": 0.005, "cpu": 5.0}
#: A larger speedup needs a problem whose audit says what any kernel has to move.
UNVOUCHED_SPEEDUP = 10.0
#: Probes of the integrity stage, with the code that a missing one leaves open. `CONSTANT` is none of them: facts that
#: were recorded before there was one would all be unknown.
PROBES: Mapping[Probe, str] = {
    Probe.FRESH: "B1",
    Probe.ELEMENT: "B2",
    Probe.ROW: "B2",
    Probe.STRUCTURE: "A14",
    Probe.AMPLIFIED: "A14",
    Probe.GRADIENTS: "A8",
    Probe.WEIGHTS: "B9",
}
#: Those that only make sense where the candidate's own kernels are asked for, and what meddles with Triton's launches.
OWN_PROBES: Mapping[Probe, str] = {Probe.MODE: "A9"}
TRITON_PROBES: Mapping[Probe, str] = {Probe.ABLATION: "A5", Probe.PERTURBATION: "A6"}

_GRAVITY = (
    (Weight.HARD, Integrity.REJECTED),
    (Weight.FAILED, Integrity.UNKNOWN),
    (Weight.SOFT, Integrity.SUSPICIOUS),
)


def judge(evaluation: Evaluation, artefacts: Artefacts | None = None, audit: Audit | None = None) -> Verdict:
    """Decide about an evaluation that holds its protocol and observations.

    Speedups are computed again from raw times where `artefacts` has them. An `audit` of the problem on the same kind
    of device says what any kernel must move; the verdict's version names it.

    Raises:
        ValueError: protocol or observations are missing, as in evaluations of drkq before it had rules.
    """
    if evaluation.protocol is None or evaluation.observations is None:
        raise ValueError("the evaluation does not hold what rules are applied to")
    baselines = _speedups(evaluation, artefacts)
    timed = evaluation.revised(
        Verdict(rules_version=RULES_VERSION, integrity=evaluation.integrity, baselines=baselines)
    )
    found = [*evaluation.observations.seen, *missing(evaluation)]
    for rule in _RULES:
        found += rule(timed, evaluation.observations, evaluation.protocol)
    found += physics.check(timed, evaluation.observations, audit)
    found += _vouched(timed, audit)
    return _verdict(evaluation, found, baselines, audit)


def version(audit: Audit | None = None) -> str:
    """Version of a verdict by these rules; one that rests on an audit too says so."""
    if audit is None or audit.bytes_least is None:
        return RULES_VERSION
    return f"{RULES_VERSION}+audit{audit.version}"


def decide(weights: Iterable[Weight | None]) -> Integrity:
    """Rejected by any hard evidence, else unknown if a detector failed, else suspicious by any soft evidence."""
    there = set(weights)
    return next((integrity for weight, integrity in _GRAVITY if weight in there), Integrity.CLEAN)


def hidden_ms(device: str, claimed_ms: float, clock_ms: float, noise_ms: float) -> float:
    """Return the milliseconds of a call that the judge's clock saw and the claim lacks; 0 within what may be noise.

    `device` is its type, `cuda` or `cpu`; `clock_ms` and `noise_ms` are those of `Observations`.
    """
    lacking = clock_ms - claimed_ms
    return lacking if lacking > max(MOST_HIDDEN[device] * clock_ms, noise_ms) else 0.0


def is_adrift(device: str, timing: Timing) -> bool:
    """Whether the reference's own time changed so much, from the first block to the last, that no speedup is known."""
    return device != "cpu" and timing.drift > MOST_DRIFT and timing.drift * timing.reference_ms > LEAST_DRIFT_MS


def missing(evaluation: Evaluation) -> list[Evidence]:
    """Say which observations the stages call for and are not there; a kernel that is at fault may end them early."""
    protocol, observed = evaluation.protocol, evaluation.observations
    if protocol is None or observed is None or evaluation.outcome is not Outcome.CORRECT:
        return []
    lacking: dict[str, str] = {}
    if Stage.INTEGRITY in protocol.stages:
        lacking |= _missing_probes(observed, protocol, profiled=evaluation.profile is not None)
    if Stage.TIMING in protocol.stages:
        lacking |= _missing_timing(evaluation, observed)
    if Stage.PROFILE in protocol.stages and (evaluation.profile is None or evaluation.profile.profile_ratio is None):
        lacking["E13"] = (evaluation.profile and evaluation.profile.fault) or "no device activity was recorded"
    return [Evidence(code=code, weight=Weight.FAILED, detail=detail) for code, detail in lacking.items()]


def _missing_probes(observed: Observations, protocol: Protocol, *, profiled: bool) -> dict[str, str]:
    own, triton = protocol.backend != "any", protocol.backend == "triton"
    wanted = {**PROBES, **(OWN_PROBES if own else {}), **(TRITON_PROBES if triton else {})}
    left_out = {code: probe for probe, code in wanted.items() if probe not in observed.probes}
    lacking = {code: f"the probe `{probe.value}` is missing" for code, probe in left_out.items()}
    why_not = observed.probes.get(Probe.ABLATION)
    if triton and why_not and observed.own_launches and not profiled:
        lacking["A5"] = f"launches were not suppressed ({why_not}), and no profile says what ran instead"
    if protocol.backend == "cuda" and not observed.own_launches and not profiled:
        lacking["A1"] = "no Triton kernel was launched, and no profile says whether CUDA C++ of the candidate was"
    return lacking


def _missing_timing(evaluation: Evaluation, observed: Observations) -> dict[str, str]:
    if evaluation.timing is None:
        return {"D10": "nothing was timed"}
    lacking = {}
    if observed.late_ms is None:
        lacking["D1"] = "nobody looked whether the device went on working after a call"
    if (observed.clock_ms is None or observed.clock_noise_ms is None) and not observed.no_clock:
        lacking["D10"] = "the judge's own clock is missing"
    if evaluation.timing.reference_alone_ms is None:
        lacking["D15"] = "the reference was not timed alone"
    if not evaluation.timing.checked and not observed.wrong_outputs:
        lacking["B5"] = "no output of a timed call was compared"
    if not observed.timed_calls or observed.other_names is None:
        lacking["A8"] = "nobody looked which kernels ran in timed calls"
    return lacking


def _late(evaluation: Evaluation, observed: Observations, _: Protocol) -> Iterator[Evidence]:
    timing, late_ms = evaluation.timing, observed.late_ms
    if timing and late_ms is not None and late_ms > max(MOST_LATE_MS, MOST_LATE * timing.candidate_ms):
        yield _hard("D1", f"the device was still working {late_ms:.3g} ms after the last event of a call")


def _hidden(evaluation: Evaluation, observed: Observations, _: Protocol) -> Iterator[Evidence]:
    timing, clock_ms, noise_ms = evaluation.timing, observed.clock_ms, observed.clock_noise_ms
    if timing is None or clock_ms is None or noise_ms is None:
        return
    if hidden_ms(evaluation.environment.device_type, timing.candidate_ms, clock_ms, noise_ms):
        claimed = f"{timing.candidate_ms:.3g} ms were claimed for a call"
        yield _hard("D10", f"{claimed}, the judge's own clock saw {clock_ms:.3g} ms at least")


def _wrong(_: Evaluation, observed: Observations, __: Protocol) -> Iterator[Evidence]:
    if observed.wrong_outputs:
        counted = f"outputs of timed calls are wrong ({observed.wrong_outputs})"
        yield _hard("B5", f"{counted}: {observed.first_wrong}")


def _idle(evaluation: Evaluation, observed: Observations, protocol: Protocol) -> Iterator[Evidence]:
    profile, idle = evaluation.profile, observed.idle_calls
    # A CUDA graph is launched by Triton once, and replayed by nobody who counts; the profile tells what it runs.
    replayed = not observed.profiled_launches and profile is not None and profile.launches > 0
    if protocol.backend == "triton" and observed.own_launches and idle and not replayed:
        detail = f"in {idle} of {observed.timed_calls} timed calls no Triton kernel of the candidate was launched"
        yield Evidence(code="A8", weight=Weight.HARD if profile else Weight.FAILED, detail=detail)


def _others(_: Evaluation, observed: Observations, __: Protocol) -> Iterator[Evidence]:
    if observed.other_names:
        detail = "other Triton kernels run in the process that was timed than in the one that was checked"
        yield Evidence(code="A16", weight=Weight.NOTE, detail=detail)


def _touched(_: Evaluation, observed: Observations, __: Protocol) -> Iterator[Evidence]:
    share = observed.touched
    if share is not None and share < LEAST_TOUCHED:
        detail = f"only {share:.1%} of the output elements notice when what the Triton kernels write is changed"
        yield Evidence(code="A6", weight=Weight.SOFT, detail=detail)


def _drift(evaluation: Evaluation, _: Observations, __: Protocol) -> Iterator[Evidence]:
    timing = evaluation.timing
    if timing is not None and is_adrift(evaluation.environment.device_type, timing):
        detail = f"the reference's own time changed by {timing.drift:.1%} while the kernel was timed"
        yield Evidence(code="D16", weight=Weight.FAILED, detail=detail)


def _slowed(evaluation: Evaluation, _: Observations, __: Protocol) -> Iterator[Evidence]:
    timing, device = evaluation.timing, evaluation.environment.device_type
    if timing is None or timing.reference_alone_ms is None:
        return
    if timing.reference_ms > MOST_SLOWED[device] * timing.reference_alone_ms + SLOWED_NOISE_MS[device]:
        beside = f"the reference took {timing.reference_ms:.3g} ms beside the candidate"
        yield _hard("D15", f"{beside}, {timing.reference_alone_ms:.3g} ms when it was gone")


_Rule = Callable[[Evaluation, Observations, Protocol], Iterable[Evidence]]
_RULES: tuple[_Rule, ...] = (_late, _hidden, _wrong, _idle, _others, _touched, _drift, _slowed, *authorship.RULES)


def _vouched(evaluation: Evaluation, audit: Audit | None) -> Iterator[Evidence]:
    """Only an audit's bytes vouch for a very large speedup."""
    timing = evaluation.timing
    audited = audit is not None and audit.bytes_least is not None
    if timing is not None and not audited and timing.speedup > UNVOUCHED_SPEEDUP:
        detail = f"{timing.speedup:.3g} times as fast as a reference that no audit vouches for"
        yield Evidence(code=UNVOUCHED, weight=Weight.NOTE, detail=detail)


def _speedups(evaluation: Evaluation, artefacts: Artefacts | None) -> tuple[BaselineTiming, ...]:
    """Compute every speedup again whose raw times are there; empty when none are."""
    blocks = artefacts.blocks if artefacts else {}
    own = blocks.get("candidate")
    if evaluation.timing is None or own is None:
        return ()
    return tuple(
        _speedup(row, blocks.get(side_name(row.baseline, row.precision)), own) for row in evaluation.timing.baselines
    )


def _speedup(row: BaselineTiming, reference: Blocks | None, candidate: Blocks) -> BaselineTiming:
    if reference is None:
        return row
    speedup, low, high = measured_speedup(reference, candidate)
    return row.model_copy(update={"speedup": speedup, "speedup_low": low, "speedup_high": high})


def _verdict(
    evaluation: Evaluation, found: Iterable[Evidence], baselines: tuple[BaselineTiming, ...], audit: Audit | None
) -> Verdict:
    evidence = tuple(dict.fromkeys(found))
    integrity = decide(item.weight for item in evidence)
    stages = evaluation.protocol.stages if evaluation.protocol else ()
    examined = evaluation.outcome is Outcome.CORRECT and Stage.INTEGRITY in stages
    if integrity is not Integrity.REJECTED and not examined:
        integrity = Integrity.UNKNOWN  # whatever little was seen, nothing is established
    return Verdict(rules_version=version(audit), integrity=integrity, evidence=evidence, baselines=baselines)


def _hard(code: str, detail: str) -> Evidence:
    return Evidence(code=code, weight=Weight.HARD, detail=detail)
