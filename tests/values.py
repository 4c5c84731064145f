"""Builders of the values that a store holds: short to write, whole, and different where it matters."""

import uuid
from typing import Any

from drkernel_q.audit import Audit, AuditRequest, Sensitivity
from drkernel_q.correctness import Correctness
from drkernel_q.environment import Environment
from drkernel_q.evaluation import (
    Baseline,
    BaselineTiming,
    Evaluation,
    EvaluationRequest,
    Failure,
    Integrity,
    Outcome,
    Reply,
    Timing,
)
from drkernel_q.kernel import Kernel
from drkernel_q.observation import Evidence, Observations, Probe, Weight
from drkernel_q.problem import Problem
from drkernel_q.profile import KernelProfile, Origin, Profile

SOFTMAX = Problem(name="softmax", source="class Model: ...")
MATMUL = Problem(name="matmul", source="class Model: '''matmul'''")
H200 = "sm_90/NVIDIA H200"
NO_KERNEL = Evidence(code="A4", weight=Weight.HARD, detail="no kernel of its own ran")


def an_environment(device_kind: str = H200) -> Environment:
    return Environment(
        device="cpu" if device_kind == "cpu" else "cuda:0",
        device_name=device_kind,
        device_kind=device_kind,
        host="box",
        python="3.11.7",
        torch="2.13.0",
        triton="3.7.0",
        drkq="0.1.0",
        isolation=("uid", "seccomp"),
    )


def an_evaluation(
    outcome: str = "correct",
    integrity: str = "clean",
    *,
    speedup: float | None = None,
    profile_ratio: float | None = None,
    device_kind: str = H200,
    **more: Any,
) -> Evaluation:
    """Facts; with a speedup there is a timing whose interval is 10 % to either side."""
    if speedup is not None:
        more.setdefault("timing", _timing(speedup))
    if profile_ratio is not None:
        more.setdefault("profile", a_profile(profile_ratio))
    shown = Correctness(trials=5, passed=5 if outcome == "correct" else 3, max_error=1e-6)
    return Evaluation(
        outcome=Outcome(outcome),
        integrity=Integrity(integrity),
        evidence=(NO_KERNEL,) if integrity == "rejected" else (),
        correctness=more.pop("correctness", shown),
        environment=an_environment(device_kind),
        durations_s=more.pop("durations_s", {"correctness": 0.25, "timing": 1.5}),
        **more,
    )


def observed(**changes: Any) -> Observations:
    """All that a judge observes of an honest kernel, but for what changes."""
    whole = {
        "probes": dict.fromkeys(Probe, ""),
        "own_launches": 5,
        "touched": 1.0,
        "timed_calls": 100,
        "profiled_launches": 10,
        "other_names": False,
        "late_ms": 0.001,
        "clock_ms": 0.1,
        "clock_noise_ms": 0.1,
        "bytes_least": 2**20,
    }
    return Observations(**whole | changes)


def a_profile(profile_ratio: float, **device_us: float) -> Profile:
    """A profile of 100 us of device time, or of the kernels that are named."""
    own = device_us or {"own": 100 * profile_ratio, "aten::softmax": 100 * (1 - profile_ratio)}
    return Profile(
        profile_ratio=profile_ratio,
        launches=1,
        device_us=sum(own.values()),
        kernels=tuple(
            KernelProfile(
                name=name, device_us=us, launches=2, origin=Origin.TORCH if "aten" in name else Origin.CANDIDATE
            )
            for name, us in own.items()
        ),
    )


def a_request(source: str = "k", *, problem: Problem = SOFTMAX, name: str = "k.py", **more: Any) -> EvaluationRequest:
    return EvaluationRequest(
        id=more.pop("id", uuid.uuid4().hex),
        problem=problem,
        kernel=Kernel(source=source, name=name),
        submitted_at="2026-01-01T00:00:00+00:00",
        **more,
    )


def a_reply(
    request: EvaluationRequest, evaluation: Evaluation | None = None, *, attempt: int = 1, second: int = 5
) -> Reply:
    """The reply with these facts, finished at that second of the first minute of 2026."""
    return Reply(
        id=request.id,
        attempt=attempt,
        worker="box:cuda:0",
        evaluation=evaluation or an_evaluation(),
        finished_at=f"2026-01-01T00:00:{second:02d}+00:00",
    )


def a_failure(request: EvaluationRequest, *, attempt: int = 1, message: str = "the device was lost") -> Reply:
    return Reply(
        id=request.id,
        attempt=attempt,
        worker="box:cuda:0",
        failure=Failure(kind="infrastructure", message=message),
        finished_at="2026-01-01T00:00:09+00:00",
    )


def _timing(speedup: float) -> Timing:
    interval = {"speedup": speedup, "speedup_low": speedup * 0.9, "speedup_high": speedup * 1.1}
    return Timing(
        reference_ms=1.0,
        reference_alone_ms=1.0,
        candidate_ms=1.0 / speedup,
        candidate_iqr_ms=0.01,
        runs=100,
        blocks=10,
        drift=0.01,
        checked=3,
        baselines=(BaselineTiming(baseline=Baseline.EAGER, reference_ms=1.0, **interval),),
        **interval,
    )


def an_audit(device_kind: str = H200, **facts: Any) -> Audit:
    """The audit of a problem with nothing the matter, but for what is said."""
    tensors = (
        Sensitivity(name="input 0", kind="input", size_bytes=4096, constant=False, redraw=True, read_share=1.0),
        Sensitivity(name="weight", kind="parameter", size_bytes=1024, constant=False, redraw=True, read_share=1.0),
    )
    sound: dict[str, Any] = {
        "reference_ms": 1.0,
        "relative_l2": 1e-7,
        "finite": True,
        "deterministic": True,
        "random": False,
        "repeatable": True,
        "zeros_pass": False,
        "constant_passes": False,
        "other_passes": False,
        "train_differs": False,
        "sensitivities": tensors,
        "output_bytes": 4096,
    }
    return Audit(environment=an_environment(device_kind), **(sound | facts))


def an_audit_request(problem: Problem = SOFTMAX, **more: Any) -> AuditRequest:
    return AuditRequest(id=uuid.uuid4().hex, problem=problem, submitted_at="2026-01-01T00:00:00+00:00", **more)


def an_audit_reply(request: AuditRequest, audit: Audit | None = None, *, attempt: int = 1, second: int = 5) -> Reply:
    return Reply(
        id=request.id,
        attempt=attempt,
        worker="box:cuda:0",
        audit=audit or an_audit(),
        finished_at=f"2026-01-01T00:00:{second:02d}+00:00",
    )
