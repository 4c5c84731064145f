"""The language of KernelGYM: its request as an order of ours, our reply as its answer. Pure.

The names of fields are those of KernelGYM's HTTP interface of February 2026, so that its clients need no change.
"""

import keyword
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from drkernel_q.evaluation import Baseline, Evaluation, Integrity, Outcome, Protocol, Reply, Stage
from drkernel_q.feedback import feedback
from drkernel_q.gateway.submission import State, SubmissionView
from drkernel_q.profile import Origin, Profile
from drkernel_q.request import Priority
from drkernel_q.value import Value

#: What KernelGYM says of a time that was not measured.
NO_TIME = -1.0
MAX_CODE_CHARS = 100_000
Status = Literal["pending", "processing", "completed", "failed", "timeout", "cancelled"]
TaskId = Annotated[str, Field(min_length=1, max_length=100)]
_Code = Annotated[str, Field(max_length=MAX_CODE_CHARS)]
_PRIORITIES = {"low": Priority.BACKFILL, "normal": Priority.TRAINING, "high": Priority.INTERACTIVE}
_FAILURES: dict[str, tuple[Status, str]] = {
    "infrastructure": ("failed", "SYSTEM_ERROR"),
    "problem": ("failed", "VALIDATION_ERROR"),
    "cancelled": ("cancelled", "SYSTEM_ERROR"),
    "deadline": ("timeout", "TIMEOUT_ERROR"),
}
_CODES = {
    Outcome.COMPILE_ERROR: "COMPILATION_ERROR",
    Outcome.RUNTIME_ERROR: "RUNTIME_ERROR",
    Outcome.CRASHED: "RUNTIME_ERROR",
    Outcome.OUT_OF_MEMORY: "RESOURCE_ERROR",
    Outcome.TIMEOUT: "TIMEOUT_ERROR",
}


class GymTask(Value):
    """KernelGYM's request for one evaluation; fields that mean nothing here are passed over."""

    model_config = ConfigDict(extra="ignore")

    task_id: TaskId
    """The client's name for it."""
    reference_code: _Code
    """A reference module in KernelBench's format."""
    kernel_code: _Code
    """The kernel: a module that defines the entry point's name with `New` behind it."""
    entry_point: Annotated[str, Field(max_length=200)] = "Model"
    """Class of the reference."""
    backend: Literal["triton", "cuda"] = "triton"
    """Whose kernels must run."""
    workflow: Literal["kernelbench"] | None = "kernelbench"
    """The only one there is here."""
    reference_backend: Literal["pytorch", "torch_compile"] | None = None
    """What the kernel's time is compared with."""
    num_correct_trials: Annotated[int, Field(ge=1, le=20)] = 5
    """Correctness trials."""
    timeout: Annotated[int, Field(ge=10, le=3600)] = 300
    """Longest time for it on the worker, seconds."""
    priority: Literal["low", "normal", "high"] = "normal"
    """What it waits behind: `normal` is `training` here."""
    force_refresh: bool = False
    """Whether facts that are there already are not good enough."""
    uuid: Annotated[str, Field(max_length=200)] | None = None
    """A label of the problem's."""
    verbose_errors: bool | None = None
    """False: one line is enough for an error."""
    enable_profiling: bool | None = None
    enable_triton_detection: bool | None = None
    run_triton_detection: bool | None = None
    measure_performance: bool | None = None
    run_performance: bool | None = None

    @property
    def problem_name(self) -> str:
        """Label of the problem, for people."""
        return f"{self.entry_point}_{self.uuid}" if self.uuid else self.entry_point

    @property
    def kernel_source(self) -> str:
        """The kernel with its class under the name that the judge looks for."""
        name = f"{self.entry_point}New"
        if self.entry_point == "Model" or not name.isidentifier() or keyword.iskeyword(name):
            return self.kernel_code
        return f"{self.kernel_code}\n\nModelNew = {name}\n"

    @property
    def protocol(self) -> Protocol:
        """How to judge it."""
        wanted = {
            Stage.CORRECTNESS: True,
            Stage.INTEGRITY: _first(self.run_triton_detection, self.enable_triton_detection),
            Stage.PROFILE: _first(self.enable_profiling),
            Stage.TIMING: _first(self.run_performance, self.measure_performance),
        }
        baseline = Baseline.COMPILE if self.reference_backend == "torch_compile" else Baseline.EAGER
        return Protocol(
            stages=tuple(stage for stage, is_wanted in wanted.items() if is_wanted),
            trials=self.num_correct_trials,
            weight_seeds=min(2, self.num_correct_trials),
            baselines=(baseline,),
            backend=self.backend,
        )

    @property
    def urgency(self) -> Priority:
        """Its priority by our names."""
        return _PRIORITIES[self.priority]


class GymResult(Value):
    """KernelGYM's answer about one evaluation."""

    task_id: str
    status: Status
    compiled: bool | None = None
    correctness: bool | None = None
    """Whether the outputs are right; of a kernel that was not examined as asked, False."""
    decoy_kernel: bool | None = None
    """Whether the result was come by otherwise than asked: integrity `rejected` or `suspicious`."""
    reference_runtime: float | None = None
    """Milliseconds."""
    kernel_runtime: float | None = None
    """Milliseconds."""
    speedup: float | None = None
    """Speedup; 0 where nothing was timed, or the kernel is wrong."""
    metadata: dict[str, Any] | None = None
    """Device, profile and what else KernelGYM's clients read; under `drkq` the verdict in our words."""
    error_message: str | None = None
    error_code: str | None = None
    submitted_at: str | None = None
    completed_at: str | None = None
    processing_time: float | None = None
    """Seconds from submission to reply."""


class GymStatus(Value):
    """KernelGYM's answer about how far an evaluation is."""

    task_id: str
    status: Status
    assigned_device: str | None = None
    error_message: str | None = None


def status_of(view: SubmissionView) -> Status:
    """Say in KernelGYM's words how far an evaluation is."""
    if view.reply is None:
        return "processing" if view.state is State.RUNNING else "pending"
    if view.reply.failure is not None:
        return _FAILURES[view.reply.failure.kind][0]
    evaluation = view.reply.evaluation
    return "failed" if evaluation is not None and evaluation.outcome is Outcome.COMPILE_ERROR else "completed"


def result_of(task_id: str, view: SubmissionView, *, verbose: bool = True) -> GymResult:
    """Say in KernelGYM's words what came of an evaluation."""
    about: dict[str, Any] = {"task_id": task_id, "status": status_of(view), "submitted_at": view.submitted_at}
    if view.reply is None:
        return GymResult(**about)
    about |= {"completed_at": view.reply.finished_at, "processing_time": _seconds(view.submitted_at, view.reply)}
    failure, evaluation = view.reply.failure, view.reply.evaluation
    if evaluation is None:
        kind = failure.kind if failure is not None else "infrastructure"
        told = failure.message if failure is not None else "There is neither an evaluation nor a reason."
        return GymResult(**about, error_message=f"{kind}: {told}", error_code=_FAILURES[kind][1])
    return GymResult(**about, **_facts(evaluation, verbose=verbose))


def _facts(evaluation: Evaluation, *, verbose: bool) -> dict[str, Any]:
    correct, timing = _is_correct(evaluation), evaluation.timing
    decoy = evaluation.integrity in {Integrity.REJECTED, Integrity.SUSPICIOUS}
    told = feedback(evaluation) if decoy or not correct else None
    return {
        "compiled": evaluation.outcome is not Outcome.COMPILE_ERROR,
        "correctness": correct,
        "decoy_kernel": decoy,
        "reference_runtime": timing.reference_ms if timing else NO_TIME,
        "kernel_runtime": timing.candidate_ms if timing else NO_TIME,
        "speedup": timing.speedup if timing and correct else 0.0,
        "metadata": _metadata(evaluation),
        "error_message": told if told is None or verbose else told.partition("\n")[0],
        "error_code": None if correct else _CODES.get(evaluation.outcome, "CORRECTNESS_ERROR"),
    }


def _is_correct(evaluation: Evaluation) -> bool:
    """Right, and examined as far as it was asked for; what was come by dishonestly is told by another field."""
    stages = evaluation.protocol.stages if evaluation.protocol else tuple(Stage)
    examined = evaluation.integrity is not Integrity.UNKNOWN or Stage.INTEGRITY not in stages
    return evaluation.outcome is Outcome.CORRECT and examined


def _metadata(evaluation: Evaluation) -> dict[str, Any]:
    environment, shown = evaluation.environment, evaluation.correctness
    found: dict[str, Any] = {
        "device": environment.device,
        "gpu_name": environment.device_name,
        "backend": evaluation.protocol.backend if evaluation.protocol else None,
        "drkq": {
            "outcome": evaluation.outcome.value,
            "integrity": evaluation.integrity.value,
            "profile_ratio": evaluation.profile_ratio,
            "speedup_low": evaluation.timing.speedup_low if evaluation.timing else None,
            "speedup_high": evaluation.timing.speedup_high if evaluation.timing else None,
            "precision_class": shown.precision_class if shown else None,
        },
    }
    if shown is not None:
        found["correctness_trials"] = f"({shown.passed} / {shown.trials})"
    if evaluation.profile is not None and evaluation.profile_ratio is not None:
        found |= _coverage(evaluation.profile)
    return found


def _coverage(profile: Profile) -> dict[str, float]:
    """What KernelGYM's client divides to get the profile ratio; its other names for it come along."""
    own = [kernel for kernel in profile.kernels if kernel.origin is Origin.CANDIDATE]
    return {
        "num_custom_kernels": len(own),
        "num_total_kernels": len(profile.kernels),
        "custom_kernel_cuda_time_in_profiling_us": (profile.profile_ratio or 0.0) * profile.device_us,
        "total_kernel_run_time_in_profiling_us": profile.device_us,
        "custom_kernel_cuda_time_coverage": profile.profile_ratio or 0.0,
    }


def _seconds(submitted_at: str | None, reply: Reply) -> float | None:
    if submitted_at is None:
        return None
    passed = datetime.fromisoformat(reply.finished_at) - datetime.fromisoformat(submitted_at)
    # Facts of an earlier evaluation are older than the question.
    return max(0.0, passed.total_seconds())


def _first(*flags: bool | None) -> bool:
    """The first of several flags that was set; else yes."""
    return next((flag for flag in flags if flag is not None), True)
