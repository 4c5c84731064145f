"""Parts that a problem is composed of: elementwise steps, reductions of rows, and products of matrices."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from drkernel_q.curriculum.operator import Operator

#: What operands are called: a second input, and parameters with a value for each column.
OPERANDS = ("y", "scale", "shift")
#: Rows and columns of the numbers that parts are checked with.
ROWS, COLUMNS = 6, 24

Values: TypeAlias = Sequence[float]


@dataclass(frozen=True, slots=True)
class Step:
    """One elementwise operator with its constant."""

    operator: Operator
    constant: float = 0.0

    @property
    def name(self) -> str:
        """Name of the operator."""
        return self.operator.name

    @property
    def kernels(self) -> frozenset[str]:
        """Kernels that torch runs for it."""
        return self.operator.kernels

    def torch(self, x: str) -> str:
        """Write it as torch does, on the value `x`."""
        operand = self.operator.operand
        return self.operator.torch.format(x=x, c=self.constant, y=operand if operand == "y" else f"self.{operand}")

    def triton(self, x: str = "x") -> str:
        """Write it as Triton does, on the value `x`."""
        return self.operator.triton.format(x=x, c=self.constant, y=self.operator.operand)

    def numbers(self, values: Values, given: Mapping[str, Values]) -> list[float]:
        """Compute it."""
        others = given.get(self.operator.operand or "", values)
        return [self.operator.number(x, self.constant, y) for x, y in zip(values, others, strict=True)]


@dataclass(frozen=True, slots=True)
class Reduction:
    """Something that is done to each row as a whole; `columns` is what its length is called in a kernel."""

    name: str
    expression: str
    """In torch, on `{x}`."""
    lines: tuple[str, ...]
    """In Triton, on the row `x`."""
    number: Callable[[Values], list[float]]
    """Of one row: a row, or one value."""
    kernels: frozenset[str]
    padding: str = "0.0"
    """What stands behind the end of a row and changes nothing."""
    scalar: bool = False
    """Whether one value a row remains."""
    tiny: bool = False
    """Whether outputs are small because rows are long, so that only products may follow."""

    def torch(self, x: str) -> str:
        """Write it as torch does, on the value `x`."""
        return self.expression.format(x=x)

    def numbers(self, values: Values, _: Mapping[str, Values]) -> list[float]:
        """Compute it, row after row."""
        rows = (values[start : start + COLUMNS] for start in range(0, len(values), COLUMNS))
        return [value for row in rows for value in self.number(row)]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the rows of `x` and the columns of another matrix, with a bias or not."""

    name: str
    expression: str
    """In torch, on `{x}`."""
    weight: str
    """What the other matrix is called in `forward`."""
    transposed: bool
    """Whether the other matrix is stored as (columns, inner)."""
    bias: bool = False
    kernels: frozenset[str] = frozenset({"gemm"})

    def torch(self, x: str) -> str:
        """Write it as torch does, on the value `x`."""
        return self.expression.format(x=x)

    def numbers(self, values: Values, given: Mapping[str, Values]) -> list[float]:
        """Give values that are distributed as its outputs are."""
        return [x + bias for x, bias in zip(values, given["bias"], strict=True)] if self.bias else list(values)


Part: TypeAlias = Step | Reduction | Product
Recipe: TypeAlias = tuple[Part, ...]


def operands(parts: Sequence[Part]) -> list[str]:
    """Operands of steps, in their fixed order."""
    found = {part.operator.operand for part in parts if isinstance(part, Step)}
    return [name for name in OPERANDS if name in found]


def names(parts: Sequence[Part]) -> tuple[str, ...]:
    """Parts without their constants: what makes a recipe a chain of its own."""
    return tuple(part.name for part in parts)


def _softmax(row: Values) -> list[float]:
    largest = max(row)
    powers = [math.exp(x - largest) for x in row]
    return [x / sum(powers) for x in powers]


def _logsumexp(row: Values) -> float:
    largest = max(row)
    return largest + math.log(sum(math.exp(x - largest) for x in row))


def _mean(row: Values) -> float:
    return sum(row) / len(row)


def _variance(row: Values) -> float:
    mean = _mean(row)
    return _mean([(x - mean) ** 2 for x in row])


def _layer_norm(row: Values) -> list[float]:
    mean, deviation = _mean(row), math.sqrt(_variance(row) + 1e-5)
    return [(x - mean) / deviation for x in row]


def _rms_norm(row: Values) -> list[float]:
    root = math.sqrt(_mean([x * x for x in row]) + 1e-6)
    return [x / root for x in row]


def _normalise(row: Values) -> list[float]:
    length = max(math.sqrt(sum(x * x for x in row)), 1e-12)
    return [x / length for x in row]


_LOWEST = '-float("inf")'

REDUCTIONS = (
    Reduction(
        "softmax",
        "torch.softmax({x}, dim=-1)",
        ("x = tl.exp(x - tl.max(x, 0))", "x = x / tl.sum(x, 0)"),
        _softmax,
        frozenset({"softmax"}),
        padding=_LOWEST,
        tiny=True,
    ),
    Reduction(
        "log_softmax",
        "torch.log_softmax({x}, dim=-1)",
        ("x = x - tl.max(x, 0)", "x = x - tl.log(tl.sum(tl.exp(x), 0))"),
        lambda row: [x - _logsumexp(row) for x in row],
        frozenset({"log_softmax"}),
        padding=_LOWEST,
    ),
    Reduction(
        "layer_norm",
        "F.layer_norm({x}, {x}.shape[-1:])",
        (
            "x = tl.where(mask, x - tl.sum(x, 0) / columns, 0.0)",
            "x = x * tl.rsqrt(tl.sum(x * x, 0) / columns + 1e-5)",
        ),
        _layer_norm,
        frozenset({"layer_norm"}),
    ),
    Reduction(
        "rms_norm",
        "F.rms_norm({x}, {x}.shape[-1:], eps=1e-6)",
        ("x = x * tl.rsqrt(tl.sum(x * x, 0) / columns + 1e-6)",),
        _rms_norm,
        frozenset({"rms_norm", "pow", "mean", "rsqrt", "mul", "add"}),
    ),
    Reduction(
        "normalise",
        "F.normalize({x}, dim=-1)",
        ("x = x / tl.maximum(tl.sqrt(tl.sum(x * x, 0)), 1e-12)",),
        _normalise,
        frozenset({"norm", "clamp", "div"}),
        tiny=True,
    ),
    Reduction(
        "centre",
        "{x} - torch.mean({x}, dim=-1, keepdim=True)",
        ("x = x - tl.sum(x, 0) / columns",),
        lambda row: [x - _mean(row) for x in row],
        frozenset({"mean", "sub"}),
    ),
    Reduction(
        "mean",
        "torch.mean({x}, dim=-1)",
        ("x = tl.sum(x, 0) / columns",),
        lambda row: [_mean(row)],
        frozenset({"mean"}),
        scalar=True,
    ),
    Reduction(
        "variance",
        "torch.var({x}, dim=-1, correction=0)",
        (
            "x = tl.where(mask, x - tl.sum(x, 0) / columns, 0.0)",
            "x = tl.sum(x * x, 0) / columns",
        ),
        lambda row: [_variance(row)],
        frozenset({"var"}),
        scalar=True,
    ),
    Reduction(
        "largest",
        "torch.amax({x}, dim=-1)",
        ("x = tl.max(x, 0)",),
        lambda row: [max(row)],
        frozenset({"amax"}),
        padding=_LOWEST,
        scalar=True,
    ),
    Reduction(
        "logsumexp",
        "torch.logsumexp({x}, dim=-1)",
        ("top = tl.max(x, 0)", "x = top + tl.log(tl.sum(tl.exp(x - top), 0))"),
        lambda row: [_logsumexp(row)],
        frozenset({"amax", "exp", "sum", "log", "add", "sub", "abs"}),
        padding=_LOWEST,
        scalar=True,
    ),
)

PRODUCTS = (
    Product("matmul", "torch.matmul({x}, w)", "w", transposed=False),
    Product("project", "F.linear({x}, self.weight)", "self.weight", transposed=True),
    Product("linear", "F.linear({x}, self.weight, self.bias)", "self.weight", transposed=True, bias=True),
)
