"""Evaluation: what a worker reports about one kernel on one device. Facts only; rewards are computed from them."""

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, computed_field

from drkernel_q.audit import Audit
from drkernel_q.correctness import Correctness, Precision
from drkernel_q.environment import Conditions, Environment
from drkernel_q.kernel import Kernel
from drkernel_q.observation import Evidence, Observations
from drkernel_q.profile import Profile
from drkernel_q.request import Request
from drkernel_q.value import Value, content_hash

#: Version of the JSON document of one evaluation; raised when a field changes its meaning.
SCHEMA_VERSION = 1
#: Version of the judge's rules; part of an evaluation's content key, since other rules give other facts.
PROTOCOL_VERSION = "2"
#: Outcomes that may be the machine's doing: the next attempt may end otherwise.
PASSING = frozenset({"timeout", "out_of_memory", "crashed"})
#: Code of the evidence that a speedup is too large to be believed without an audit of its problem.
UNVOUCHED = "G6"


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
    """`torch.compile` as it comes."""
    MAX_AUTOTUNE = "max-autotune"
    """`torch.compile` in the mode `max-autotune-no-cudagraphs`."""


def side_name(baseline: Baseline, precision: Precision) -> str:
    """Name a version of the reference in raw measurements: `eager`, `compile/tf32`."""
    return baseline.value if precision is Precision.REFERENCE else f"{baseline.value}/{precision.value}"


class BaselineTiming(Value):
    """The kernel against one baseline."""

    baseline: Baseline
    precision: Precision = Precision.REFERENCE
    """Arithmetic that the products of the reference were made in."""
    reference_ms: float
    """Median time of one reference call, milliseconds, cold cache."""
    speedup: float
    """Reference time over candidate time (see `drkernel_q.speedup`)."""
    speedup_low: float
    """Lower end of the 95 % interval of the speedup."""
    speedup_high: float
    """Upper end of the same interval."""
    remembered: bool = False
    """Whether the baseline's time relative to the first one is that of an earlier evaluation on such a device."""


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
    """Outputs of timed calls that the judge compared with the reference: all of them, and one of each burst."""
    reference_alone_ms: float | None = None
    """Median time of one call of the first baseline after the candidate was gone, milliseconds."""
    judge_ms: float | None = None
    """Time of one candidate call by the judge's own clock, over bursts of calls."""
    baselines: tuple[BaselineTiming, ...]
    """Every baseline, the first of them repeated above."""


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
    backend: Literal["triton", "cuda", "any"] = "triton"
    """Whose kernels must run in the scored mode: the candidate's own in Triton, its own in Triton or CUDA C++, or
    anybody's (then nobody looks who did the work, but everything else is looked at)."""
    precision: Precision = Precision.REFERENCE
    """The least precise class that counts as full precision; baselines are made in it too."""
    timing_budget_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Wall clock that the timing stage aims to stay within (it always makes its minimum of calls)."""
    kernel_deadline_s: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Longest time the candidate may take to load, and for any single call."""


class Verdict(Value):
    """What one version of the rules (`drkernel_q.rules`) makes of the facts of an evaluation."""

    rules_version: str
    integrity: Integrity
    evidence: tuple[Evidence, ...] = ()
    baselines: tuple[BaselineTiming, ...] = ()
    """Speedups, computed again from raw times; empty when nothing was timed, or the raw times are not known."""


class Evaluation(Value):
    """What one run of one kernel against one problem on one device showed."""

    schema_version: int = SCHEMA_VERSION
    outcome: Outcome
    integrity: Integrity
    evidence: tuple[Evidence, ...] = ()
    rules_version: str | None = None
    """Version of the rules that gave integrity and evidence; None where no rules were asked."""
    protocol: Protocol | None = None
    """How the kernel was judged, which may be less than what was asked for."""
    observations: Observations | None = None
    """What integrity and evidence were decided from."""
    correctness: Correctness | None = None
    timing: Timing | None = None
    profile: Profile | None = None
    environment: Environment
    durations_s: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage."""
    error: str | None = None
    """What the kernel raised, or why it was stopped; text of the candidate, never parsed."""
    fault: str | None = None
    """The first fault of a process of the candidate's, in one word: `cuda:illegal_address` (an error of the device),
    `signal:SIGSEGV`, `exit:3`, `deadline`, `host:out_of_memory`, `nonsense` (a reply that is none), or `xid:31` (of the
    driver alone). An error of Python is none. The outcome can be correct: other modes and probes run in it too."""
    stdout: str = ""
    """The first few kilobytes that the candidate printed; never parsed."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def device(self) -> str:
        """The device as people call it; the interpreter is always named."""
        device = self.environment.device
        return f"{device} (interpreted)" if device.startswith("cpu") else device

    @computed_field  # type: ignore[prop-decorator]
    @property
    def speedup(self) -> float | None:
        """Speedup over the first baseline, if timed."""
        return self.timing.speedup if self.timing else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def profile_ratio(self) -> float | None:
        """Profile ratio (PR), if profiled."""
        return self.profile.profile_ratio if self.profile else None

    @property
    def honest_and_correct(self) -> bool:
        """C of the paper: correct, and the integrity verdict is clean."""
        return self.outcome is Outcome.CORRECT and self.integrity is Integrity.CLEAN

    @property
    def conditions(self) -> Conditions:
        """What decided these facts beside what was asked for."""
        return self.environment.conditions(self.rules_version)

    @property
    def lasting(self) -> bool:
        """Whether another evaluation would show the same, so that this one answers whoever asks for it again.

        Not so where an outcome may be the machine's doing, or where a detector failed.
        """
        stages = self.protocol.stages if self.protocol else tuple(Stage)
        doubtful = self.outcome is Outcome.CORRECT and self.integrity is Integrity.UNKNOWN
        return self.outcome not in PASSING and not (doubtful and Stage.INTEGRITY in stages)

    @property
    def needs_audit(self) -> bool:
        """Whether the speedup is so large that only an audit of the problem can vouch for it."""
        return any(item.code == UNVOUCHED for item in self.evidence)

    def revised(self, verdict: Verdict) -> "Evaluation":
        """Return these facts under another verdict, for rewards and for whoever looks at them later."""
        timing = self.timing
        if timing is not None and verdict.baselines:
            speed = verdict.baselines[0].model_dump(include={"speedup", "speedup_low", "speedup_high"})
            timing = timing.model_copy(update=speed | {"baselines": verdict.baselines})
        decided = {name: getattr(verdict, name) for name in ("rules_version", "integrity", "evidence")}
        return self.model_copy(update=decided | {"timing": timing})


class EvaluationRequest(Request):
    """Asks for an evaluation: the problem, the kernel and how to judge it."""

    kernel: Kernel
    protocol: Protocol = Protocol()
    run: str | None = None
    """Name of the run that this evaluation belongs to, for the store."""
    turn: int | None = None
    """Row of the turn that wrote the kernel, for the store."""
    fresh: bool = False
    """Whether facts that are there already, or on their way for somebody else, are not good enough."""

    def content_key(self, conditions: Conditions) -> str:
        """Hash of everything that decides the facts: problem, kernel, protocol, kind of device and versions."""
        parts = (json.dumps(part.model_dump(mode="json"), sort_keys=True) for part in (self.protocol, conditions))
        return content_hash("evaluation", self.problem.hash, self.kernel.hash, *parts)


class Failure(Value):
    """Why there are no facts: never a statement about a kernel."""

    kind: Literal["infrastructure", "problem", "cancelled", "deadline"]
    message: str


class Reply(Value):
    """What comes back for a request: the facts that it asked for, or the reason why there are none."""

    id: str
    attempt: int
    """Which claim of the request this is, from 1."""
    worker: str
    evaluation: Evaluation | None = None
    """For an `EvaluationRequest`."""
    artefacts: str | None = None
    """Raw measurements behind it, packed (`drkernel_q.artefact`), as base64; only the store is sent them."""
    audit: Audit | None = None
    """For an `AuditRequest`."""
    failure: Failure | None = None
    finished_at: str
    """UTC, ISO 8601."""
    measured_for: str | None = None
    """Id of the request that the facts were found for, when it was another one; worker and times are of that one."""

    @property
    def cached(self) -> bool:
        """Whether the facts are those of another request for the same thing."""
        return self.measured_for is not None

    def shared_with(self, request_id: str) -> "Reply":
        """Return this reply as that of another request for the same thing."""
        if request_id == self.id:
            return self
        source = self.measured_for or self.id
        return self.model_copy(update={"id": request_id, "measured_for": source, "artefacts": None})
