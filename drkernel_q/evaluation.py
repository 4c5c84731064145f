"""Evaluation: what a worker reports about one kernel on one device. Facts only; rewards are computed from them later."""

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, computed_field

from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.value import Value, content_hash

#: Version of the JSON document of one evaluation; raised when a field changes its meaning.
SCHEMA_VERSION = 1
#: Version of the judge's rules; part of an evaluation's content key, since other rules give other facts.
PROTOCOL_VERSION = "1"


class Outcome(StrEnum):
    """What running the kernel showed."""

    CORRECT = "correct"
    WRONG_VALUE = "wrong_value"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


class Integrity(StrEnum):
    """Whether the result was come by honestly; `unknown` when a detector failed, and never taken for clean."""

    CLEAN = "clean"
    SUSPICIOUS = "suspicious"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class Stage(StrEnum):
    """A part of an evaluation; correctness is always among them."""

    CORRECTNESS = "correctness"
    INTEGRITY = "integrity"
    PROFILE = "profile"
    TIMING = "timing"


class Baseline(StrEnum):
    """What the kernel's time is compared with."""

    EAGER = "eager"
    COMPILE = "compile"


class Origin(StrEnum):
    """Who wrote a kernel that ran on the device."""

    CANDIDATE = "candidate"
    TORCH = "torch"
    COMPILER = "compiler"
    MEMORY = "memory"


class Evidence(Value):
    """One reason for an integrity verdict."""

    code: str
    """Code of the attack catalogue (docs/reference/evidence.md), such as `A4`."""
    detail: str
    """What was seen, for operators; never shown to a policy."""


class Correctness(Value):
    """How the outputs compare with an fp64-anchored reference on secret inputs."""

    trials: int
    """Trials that were planned, over all weight seeds."""
    passed: int
    """Trials that passed."""
    max_error: float | None = None
    """Largest error of any element over the trials, relative to the output's scale (row or tensor RMS)."""
    relative_l2: float | None = None
    """Largest relative L2 error against fp64 over the trials."""
    tolerance: float | None = None
    """The bound that `max_error` was held to, in the trial that came closest to it."""
    precision_class: str | None = None
    """Arithmetic the errors look like: `exact`, `fp64`, `fp32`, `tf32`, `fp16`, `bf16` or `lower`."""
    allclose: bool | None = None
    """KernelBench's own verdict (shape equal, `allclose` with atol = rtol = 1e-2), for comparison only."""
    first_failure: str | None = None
    """Where and how the first failing trial differs, in one sentence."""


class BaselineTiming(Value):
    """The kernel against one baseline."""

    baseline: Baseline
    reference_ms: float
    """Median time of one reference call, milliseconds, cold cache."""
    speedup: float
    """Reference time over candidate time (exp of the median log ratio of neighbouring blocks)."""
    speedup_low: float
    """Lower end of the 95 % bootstrap interval of the speedup."""
    speedup_high: float
    """Upper end of the same interval."""


class Timing(Value):
    """Times of candidate and reference, interleaved on one device."""

    reference_ms: float
    """Median time of one call of the first baseline, milliseconds."""
    candidate_ms: float
    """Median time of one candidate call, milliseconds."""
    candidate_iqr_ms: float
    """Interquartile range of the candidate's calls, milliseconds."""
    speedup: float
    """Speedup over the first baseline."""
    speedup_low: float
    """Lower end of the 95 % interval."""
    speedup_high: float
    """Upper end of the 95 % interval."""
    runs: int
    """Timed candidate calls."""
    blocks: int
    """Interleaved blocks a side."""
    drift: float
    """Largest change of a baseline's median from the first to the last block, as a fraction."""
    checked: int
    """Timed outputs, chosen in secret, that the judge compared with the reference."""
    baselines: tuple[BaselineTiming, ...]
    """Every baseline, the first of them repeated above."""


class KernelProfile(Value):
    """One kernel that ran on the device during the profiled calls."""

    name: str
    device_us: float
    """Device time for one forward call, microseconds."""
    launches: float
    """Launches for one forward call."""
    origin: Origin


class Profile(Value):
    """Where the device time of one forward call goes."""

    profile_ratio: float | None
    """PR: device time of the candidate's own kernels over all device time, 0 to 1; None when nothing was recorded."""
    launches: float
    """Launches of the candidate's own kernels for one forward call."""
    device_us: float
    """All device time for one forward call, microseconds."""
    kernels: tuple[KernelProfile, ...]


class Environment(Value):
    """Where and with what the evaluation ran."""

    device: str
    """`cuda:0` or `cpu`."""
    device_name: str
    """Such as `NVIDIA H200`, or `cpu (interpreted)`."""
    device_kind: str
    """What results may be compared within: `sm_90/NVIDIA H200` or `cpu`."""
    host: str
    python: str
    torch: str
    triton: str
    driver: str | None = None
    drkq: str
    isolation: tuple[str, ...] = ()
    """Sandbox measures that were active for the candidate, such as `uid`, `landlock`, `seccomp`."""


class Evaluation(Value):
    """What one run of one kernel against one problem on one device showed."""

    schema_version: int = SCHEMA_VERSION
    outcome: Outcome
    integrity: Integrity
    evidence: tuple[Evidence, ...] = ()
    correctness: Correctness | None = None
    timing: Timing | None = None
    profile: Profile | None = None
    environment: Environment
    durations_s: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage."""
    error: str | None = None
    """What the kernel raised, or why it was stopped; text of the candidate, never parsed."""
    stdout: str = ""
    """The first few kilobytes that the candidate printed; never parsed."""

    @computed_field
    def device(self) -> str:
        """The device as people call it; the interpreter is always named."""
        environment = self.environment
        return "cpu (interpreted)" if environment.device == "cpu" else environment.device

    @computed_field
    def speedup(self) -> float | None:
        """Speedup over the first baseline, if timed."""
        return self.timing.speedup if self.timing else None

    @computed_field
    def profile_ratio(self) -> float | None:
        """Profile ratio (PR), if profiled."""
        return self.profile.profile_ratio if self.profile else None

    @property
    def honest_and_correct(self) -> bool:
        """C of the paper: correct, and the integrity verdict is clean."""
        return self.outcome is Outcome.CORRECT and self.integrity is Integrity.CLEAN


class Protocol(Value):
    """How a kernel is to be judged; part of the content key of the evaluation."""

    version: str = PROTOCOL_VERSION
    stages: tuple[Stage, ...] = (Stage.CORRECTNESS, Stage.INTEGRITY, Stage.PROFILE, Stage.TIMING)
    trials: Annotated[int, Field(ge=1, le=100)] = 5
    """Correctness trials with fresh secret inputs, over all weight seeds."""
    weight_seeds: Annotated[int, Field(ge=1, le=10)] = 2
    """How many differently seeded models the trials are spread over."""
    baselines: tuple[Baseline, ...] = (Baseline.EAGER,)
    mode: Literal["eval", "train"] = "eval"
    """The module mode that is checked and timed; the other one is only looked at by the hack check."""
    backend: Literal["triton", "any"] = "triton"
    """With `triton`, a candidate that runs no Triton kernel of its own in the scored mode is rejected."""
    timing_budget_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Wall clock that the timing stage aims to stay within (it always makes its minimum of calls)."""
    kernel_deadline_s: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Longest time the candidate may take to load, and for any single call."""


class EvaluationRequest(Value):
    """What a client sends: the problem, the kernel and how to judge it."""

    id: str
    """Identity of this request (32 hex digits); deliveries and retries share it."""
    problem: Problem
    kernel: Kernel
    protocol: Protocol = Protocol()
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 240.0
    """Longest time the whole evaluation may take on the worker, seconds."""
    reply_to: str | None = None
    """Stream that the reply goes to."""
    run: str | None = None
    """Name of the run that this evaluation belongs to, for the store."""
    turn: int | None = None
    """Row of the turn that wrote the kernel, for the store."""
    submitted_at: str
    """UTC time of submission, ISO 8601."""

    def content_key(self, device_kind: str) -> str:
        """Hash of everything that decides the facts: problem, kernel, protocol and kind of device."""
        protocol = json.dumps(self.protocol.model_dump(mode="json"), sort_keys=True)
        return content_hash("evaluation", self.problem.hash, self.kernel.hash, protocol, device_kind)


class Failure(Value):
    """Why an evaluation has no facts: never a statement about the kernel."""

    kind: Literal["infrastructure", "problem", "cancelled", "deadline"]
    message: str


class Reply(Value):
    """What comes back for a request: an evaluation, or the reason why there is none."""

    id: str
    attempt: int
    """Which claim of the request this is, from 1."""
    worker: str
    evaluation: Evaluation | None = None
    failure: Failure | None = None
    finished_at: str
    """UTC, ISO 8601."""
