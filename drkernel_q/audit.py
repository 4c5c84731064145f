"""Audit: what a problem is worth as a yardstick, measured on one kind of device without any kernel.

An audit holds facts. Flags follow from them by rules that are pure and live here, so that another threshold needs no
device; what each flag means is docs/reference/audit.md. Some flags mean that speed on the problem is no achievement:
then it earns no speed reward (`speed_rewarded`).
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, computed_field

from drkernel_q.environment import Environment
from drkernel_q.request import Request
from drkernel_q.value import Value

#: Version of what is measured and how; audits of other versions are made anew.
AUDIT_VERSION = "1"

#: A reference call shorter than this is launch-bound: what varies from host to host is as long as the call itself (a
#: 65 us kernel was timed at 67 to 100 us where its launch was not hidden).
LAUNCH_BOUND_MS = 0.02
#: A reference call longer than this makes an evaluation of the usual budget a handful of timed calls.
SLOW_MS = 100.0
#: Fusion alone makes torch.compile two to three times faster; a reference beaten by more does redundant or pathological
#: work (KernelBench pull requests 108 and 127 name problems whose "speedups" are a removed operation).
COMPILE_MUCH_FASTER = 5.0


class AuditRequest(Request):
    """Asks for the audit of a problem."""

    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Longest time that it may take on the worker, seconds."""
    compile: bool = False
    """Whether torch.compile is timed too, which takes from seconds to minutes."""


class Sensitivity(Value):
    """What became of the outputs when one tensor was changed.

    Whether the outputs moved beyond the judge's own tolerance; None: not tried, since such a change is impossible or
    time was over.
    """

    name: str
    """`input 0`, or the name of the parameter or buffer."""
    kind: Literal["input", "parameter", "buffer"]
    size_bytes: int
    constant: bool
    """Whether its values are the same under every seed, so that a kernel could have them written into it."""
    redraw: bool | None = None
    """With the values of another seed."""
    scale: bool | None = None
    """With all values doubled (zeros become ones, truth values are inverted)."""
    row: bool | None = None
    """With another row (along the last dimension); a vector has none."""
    element: bool | None = None
    """With one other element."""
    read_share: float | None = None
    """Share of the rows tried whose change altered any bit of the outputs: an estimate of how much of it is needed."""
    nonzero_share: float = 1.0
    """Share of its elements that are not zero."""

    @property
    def matters(self) -> bool | None:
        """Whether any change moved the outputs; None when nothing was tried."""
        tried = [moved for moved in (self.redraw, self.scale, self.row, self.element) if moved is not None]
        return any(tried) if tried else None

    @property
    def bytes_needed(self) -> float:
        """Bytes of it that are proved to matter; zeros are not counted, since a kernel may know where they lie."""
        return self.size_bytes * (self.read_share or 0.0) * self.nonzero_share


class FlagCode(StrEnum):
    """What can be the matter with a problem."""

    UNUSABLE = "unusable"
    UNCHECKED = "unchecked"
    DEGENERATE = "degenerate"
    CONSTANT_OUTPUT = "constant_output"
    RANDOM_FORWARD = "random_forward"
    INPUT_INSENSITIVE = "input_insensitive"
    WEIGHT_INSENSITIVE = "weight_insensitive"
    WEIGHT_CONSTANT = "weight_constant"
    LAUNCH_BOUND = "launch_bound"
    SLOW_REFERENCE = "slow_reference"
    COMPILE_MUCH_FASTER = "compile_much_faster"
    NONDETERMINISTIC = "nondeterministic"
    TRAIN_EVAL_DIFFER = "train_eval_differ"
    NOT_FINITE = "not_finite"
    FP64_UNAVAILABLE = "fp64_unavailable"


#: Flags of problems on which speed is no achievement, or nobody knows.
GATES = frozenset(
    {
        FlagCode.UNUSABLE,
        FlagCode.UNCHECKED,
        FlagCode.DEGENERATE,
        FlagCode.CONSTANT_OUTPUT,
        FlagCode.RANDOM_FORWARD,
    }
)


class Flag(Value):
    """One thing that is the matter with a problem."""

    code: FlagCode
    detail: str
    """What was seen, in a sentence or as the names of the tensors that it is about."""


class Audit(Value):
    """What was measured of one problem on one kind of device; None where it could not be had (see `gaps`)."""

    version: str = AUDIT_VERSION
    environment: Environment
    unusable: str | None = None
    """Why the problem cannot be used on this device, in a sentence; then what follows is what was known until then."""
    reference_ms: float | None = None
    """Median time of one eager call, milliseconds, cold cache."""
    compile_ms: float | None = None
    """The same under torch.compile; only measured when asked for."""
    kernels: int | None = None
    """Kernels, copies and fills on the device for one eager call; None on the cpu device."""
    relative_l2: float | None = None
    """Largest relative L2 error of an output against fp64; None when the problem cannot be run in fp64."""
    finite: bool | None = None
    """Whether all outputs are finite."""
    deterministic: bool | None = None
    """Whether two calls in the same state of the random generators give the same bits."""
    random: bool | None = None
    """Whether a call draws random numbers."""
    repeatable: bool | None = None
    """Whether a further call, with other random numbers, gives the same but for rounding."""
    changes_inputs: bool | None = None
    """Whether a call writes to its inputs."""
    output_rms: float | None = None
    """Root mean square over all outputs that are no whole numbers."""
    output_std: float | None = None
    """Standard deviation over the same."""
    input_spread: float | None = None
    """Relative L2 distance of the outputs for inputs of two seeds; of whole numbers, the share that differs."""
    weight_spread: float | None = None
    """The same for weights of two seeds; None without weights."""
    zeros_pass: bool | None = None
    """Whether zeros are within the judge's tolerance."""
    constant_passes: bool | None = None
    """Whether the means of the outputs for other inputs, one constant an output, are within the judge's tolerance."""
    other_passes: bool | None = None
    """Whether the outputs for other inputs are within the judge's tolerance."""
    train_differs: bool | None = None
    """Whether outputs in `train()` mode are beyond the judge's tolerance; None when they cannot be had."""
    sensitivities: tuple[Sensitivity, ...] = ()
    """Each input tensor, parameter and buffer."""
    output_bytes: int | None = None
    """Bytes of outputs that are not inputs passed through."""
    flops: int | None = None
    """Floating-point operations of products, convolutions and attention in one call, as torch counts them; no bound
    where the reference does redundant work."""
    peak_bytes: int | None = None
    """Most device memory allocated in one call, weights and inputs included; None on the cpu device."""
    gaps: dict[str, str] = Field(default_factory=dict)
    """What could not be measured, and why."""
    durations_s: dict[str, float] = Field(default_factory=dict)
    """Seconds by part."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bytes_least(self) -> int | None:
        """Bytes that any kernel must move: inputs and weights proved to matter, and outputs."""
        if self.output_bytes is None:
            return None
        return self.output_bytes + int(sum(each.bytes_needed for each in self.sensitivities))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def flags(self) -> tuple[Flag, ...]:
        """What is the matter with the problem."""
        return tuple(flag for flag in (*_about_outputs(self), *_about_tensors(self), *_about_time(self)) if flag)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def speed_rewarded(self) -> bool:
        """Whether speed on this problem is worth a reward."""
        return speed_rewarded(self.flags)


def speed_rewarded(flags: Iterable[Flag]) -> bool:
    """Whether speed is worth a reward on a problem with these flags; the others are labels."""
    return not any(flag.code in GATES for flag in flags)


def _about_outputs(audit: Audit) -> Iterable[Flag | None]:
    yield _flag(FlagCode.UNUSABLE, audit.unusable)
    yield _flag(FlagCode.UNCHECKED, _unchecked(audit) if audit.unusable is None else None)
    yield _flag(FlagCode.DEGENERATE, "zeros would pass" if audit.zeros_pass else None)
    yield _flag(FlagCode.CONSTANT_OUTPUT, _constancy(audit))
    yield _flag(FlagCode.RANDOM_FORWARD, "calls on the same inputs differ" if audit.repeatable is False else None)
    differs = audit.deterministic is False
    yield _flag(FlagCode.NONDETERMINISTIC, "bits of two calls on the same inputs differ" if differs else None)
    differs = audit.train_differs is True
    yield _flag(FlagCode.TRAIN_EVAL_DIFFER, "outputs in train() differ from those in eval()" if differs else None)
    yield _flag(FlagCode.NOT_FINITE, "outputs hold NaN or infinity" if audit.finite is False else None)
    yield _flag(FlagCode.FP64_UNAVAILABLE, audit.gaps.get("fp64"))


def _unchecked(audit: Audit) -> str | None:
    """Name what was not found out of all that decides about speed rewards."""
    names = ("repeatable", "zeros_pass", "constant_passes", "other_passes")
    missing = [name for name in names if getattr(audit, name) is None]
    return f"not known: {', '.join(missing)}" if missing else None


def _constancy(audit: Audit) -> str | None:
    if audit.constant_passes:
        return "a constant would pass"
    if audit.other_passes:
        return "the outputs for other inputs would pass"
    inputs = [each.matters for each in audit.sensitivities if each.kind == "input"]
    return "no input matters" if inputs and not any(matters is not False for matters in inputs) else None


def _about_tensors(audit: Audit) -> Iterable[Flag | None]:
    inputs = [each for each in audit.sensitivities if each.kind == "input"]
    weights = [each for each in audit.sensitivities if each.kind != "input"]
    yield _flag(FlagCode.INPUT_INSENSITIVE, _names(each for each in inputs if each.matters is False))
    yield _flag(FlagCode.WEIGHT_INSENSITIVE, _names(each for each in weights if each.matters is False))
    yield _flag(FlagCode.WEIGHT_CONSTANT, _names(each for each in weights if each.constant and each.matters))


def _about_time(audit: Audit) -> Iterable[Flag | None]:
    reference_ms, compile_ms = audit.reference_ms, audit.compile_ms
    if reference_ms is None:
        return
    on_device = audit.environment.device.startswith("cuda")  # the interpreter's times mean nothing by themselves
    short = on_device and reference_ms < LAUNCH_BOUND_MS
    yield _flag(FlagCode.LAUNCH_BOUND, f"a call takes {reference_ms * 1e3:.3g} us" if short else None)
    slow = on_device and reference_ms > SLOW_MS
    yield _flag(FlagCode.SLOW_REFERENCE, f"a call takes {reference_ms:.0f} ms" if slow else None)
    if compile_ms is not None and reference_ms > COMPILE_MUCH_FASTER * compile_ms:
        detail = f"torch.compile is {reference_ms / compile_ms:.1f} times faster"
        yield _flag(FlagCode.COMPILE_MUCH_FASTER, detail)


def _flag(code: FlagCode, detail: str | None) -> Flag | None:
    return Flag(code=code, detail=detail) if detail else None


def _names(tensors: Iterable[Sensitivity]) -> str:
    return ", ".join(each.name for each in tensors)
