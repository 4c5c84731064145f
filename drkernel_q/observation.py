"""Observation: what a judge saw that bears on integrity. Facts only; `drkernel_q.rules` says what they amount to."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from drkernel_q.value import Value


class Weight(StrEnum):
    """How much a piece of evidence decides."""

    NOTE = "note"
    """Nothing; it is only written down."""
    SOFT = "soft"
    """Enough to make a result suspicious."""
    HARD = "hard"
    """Enough to reject by itself."""
    FAILED = "failed"
    """A detector could not do its work, so nothing is established."""


class Evidence(Value):
    """One reason for an integrity verdict."""

    code: str
    """Code of the attack catalogue (docs/reference/evidence.md), such as `A4`."""
    weight: Weight | None
    """None: it was stored before weights were."""
    detail: str
    """What was seen, for operators; never shown to a policy."""


class Probe(StrEnum):
    """A call of the hack check, made to see whether the candidate notices something or does not."""

    FRESH = "fresh"
    """On fresh inputs, outside of any trial."""
    ELEMENT = "element"
    """One element of an input changed in place."""
    ROW = "row"
    """One row of an input changed in place."""
    STRUCTURE = "structure"
    """The values of an input arranged otherwise."""
    AMPLIFIED = "amplified"
    """A part of an input amplified."""
    CONSTANT = "constant"
    """Inputs that are the same under every seed, with other values."""
    GRADIENTS = "gradients"
    """With gradients on."""
    MODE = "mode"
    """In the module mode that is not scored."""
    ABLATION = "ablation"
    """With every Triton launch suppressed."""
    PERTURBATION = "perturbation"
    """With what Triton launches write changed a little."""
    WEIGHTS = "weights"
    """With other weights, loaded after construction."""


#: Module modes: `train()` and `eval()`.
Mode = Literal["train", "eval"]


class ModeCall(Value):
    """One forward call in a module mode: what of the candidate's ran."""

    kernels: tuple[str, ...] = ()
    """Triton functions of its own that were launched."""
    on_device: tuple[str, ...] | None = None
    """Kernels of its own that took device time, Triton or not; None where no profile was made in this mode."""
    milliseconds: float | None = None
    """End to end, by the wall clock of the candidate's process; None if the call raised."""


class Observations(Value):
    """What the judge saw beside correctness, timing and profile; None and empty where it did not look."""

    seen: tuple[Evidence, ...] = ()
    """What detectors saw, each with the weight that it claims."""
    probes: dict[Probe, str] = Field(default_factory=dict)
    """Probes of the integrity stage: empty for one that was made, otherwise why it could not be."""
    modes: dict[Mode, ModeCall] = Field(default_factory=dict)
    """What ran in `train()` and in `eval()`, where the hack check looked."""
    own_launches: int = 0
    """Launches of the candidate's own Triton functions over the correctness trials."""
    touched: float | None = None
    """Share of output elements that changed when what the candidate's kernels write was changed."""
    timed_calls: int = 0
    """Timed calls of the second process, profiled ones included, bursts not."""
    idle_calls: int = 0
    """Those of them in which no Triton function of the candidate was launched."""
    compiled_calls: int = 0
    """Those after the warm-up in which a Triton kernel was compiled or loaded onto the device."""
    profiled_launches: int | None = None
    """Launches of the candidate's own Triton functions during the profiled calls, as counted by Triton."""
    other_names: bool | None = None
    """Whether other Triton functions of the candidate ran in the timed process than in the checked one."""
    wrong_outputs: int = 0
    """Outputs of timed calls that are wrong."""
    first_wrong: str | None = None
    """How the first of them is wrong."""
    late_ms: float | None = None
    """Median time that the device went on working after a timed call's last event, beyond the reference's own."""
    clock_ms: float | None = None
    """What a candidate call took at least by the judge's own clock, over bursts; `Timing.judge_ms` is the estimate."""
    clock_noise_ms: float | None = None
    """How far `clock_ms` may be off."""
    no_clock: str | None = None
    """Why the judge's own clock was not asked."""
    bytes_least: int | None = None
    """Bytes that any kernel must move, as far as this evaluation shows: its outputs."""
