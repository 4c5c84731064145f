"""Correctness: how a kernel's outputs compare with the reference, how precise they are, where and how they differ."""

from enum import StrEnum

from drkernel_q.value import Value


class Precision(StrEnum):
    """Arithmetic that the products of a problem are made in, from the most precise to the least.

    Sums are fp32 in all of them. What a class can do to a problem is what it does to the reference (see
    docs/decisions/0008): a problem without products has no lower class.
    """

    REFERENCE = "reference"
    """What torch does by default: fp32 for an fp32 problem, but TF32 in cuDNN's convolutions."""
    TF32 = "tf32"
    """Operands with 10 bits of mantissa, rounded or truncated; what `tl.dot` does with fp32 unless told otherwise."""
    FP16 = "fp16"
    """Operands in fp16: as many bits, and a narrow range."""
    BF16 = "bf16"
    """Operands with 7 bits of mantissa."""

    def is_below(self, other: "Precision") -> bool:
        """Whether this class is less precise than `other`."""
        order = list(Precision)
        return order.index(self) > order.index(other)


class ErrorPattern(Value):
    """Where one output of the first failing trial is wrong, and what the wrong values look like."""

    output: int
    """Which of the outputs, in the order in which a nested result names them."""
    shape: tuple[int, ...]
    wrong: int
    """Elements beyond the tolerance."""
    elements: int
    """Elements of the output."""
    region: str
    """Where they lie, such as `rows 96..127`, `the last 8 columns`, `every element`."""
    looks: str | None = None
    """What the values there have in common, such as `zeros`, `NaN`, `2 times what they should be`."""


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
    downgraded: bool = False
    """Whether the outputs are right only by the tolerance of a less precise class than the problem asks for."""
    whole_numbers: bool | None = None
    """Whether no term was missing on small whole numbers, on which every order of summation is exact; None where the
    reference itself is not exact on them, or the candidate takes no weights."""
    allclose: bool | None = None
    """KernelBench's own verdict (shape equal, `allclose` with atol = rtol = 1e-2), for comparison only."""
    first_failure: str | None = None
    """Where and how the first failing trial differs, in one sentence."""
    pattern: ErrorPattern | None = None
    """The same as facts; None where shapes or dtypes differ already."""
