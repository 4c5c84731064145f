"""Operators: one elementwise step each, as torch writes it, as Triton writes it, and as numbers for checks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Range(Enum):
    """What is known about the values between two steps."""

    ANY = "any"
    BOUNDED = "bounded"
    """Within a few units of 0."""
    NONNEGATIVE = "nonnegative"
    POSITIVE = "positive"
    """Within a few units, and not near 0."""


#: What a step may follow, by what it needs.
_FITS = {
    Range.ANY: frozenset(Range),
    Range.BOUNDED: frozenset({Range.BOUNDED, Range.POSITIVE}),
    Range.NONNEGATIVE: frozenset({Range.NONNEGATIVE, Range.POSITIVE}),
    Range.POSITIVE: frozenset({Range.POSITIVE}),
}


@dataclass(frozen=True, slots=True)
class Operator:
    """An elementwise operator; `{x}` stands for its value, `{c}` for a constant and `{y}` for another operand."""

    name: str
    torch: str
    triton: str
    number: Callable[[float, float, float], float]
    """Value from x, c and y, in plain Python."""
    kernels: frozenset[str]
    """Kernels that torch runs for it, by names of ours: same name, same kernel."""
    needs: Range = Range.ANY
    gives: Range = Range.ANY
    constants: tuple[float, ...] = ()
    operand: Literal["y", "scale", "shift"] | None = None
    """`y` is a second input; `scale` and `shift` are parameters with a value for each column."""

    def follows(self, given: Range) -> bool:
        """Whether its domain holds values of this range."""
        return given in _FITS[self.needs]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def _unary(
    name: str,
    torch: str,
    triton: str,
    number: Callable[[float], float],
    *kernels: str,
    needs: Range = Range.ANY,
    gives: Range = Range.ANY,
) -> Operator:
    names = frozenset(kernels or (name,))
    return Operator(name, torch, triton, lambda x, c, y: number(x), names, needs, gives)


_UNARY = (
    _unary("relu", "torch.relu({x})", "tl.maximum({x}, 0.0)", lambda x: max(x, 0.0), gives=Range.NONNEGATIVE),
    _unary("sigmoid", "torch.sigmoid({x})", "tl.sigmoid({x})", _sigmoid, gives=Range.POSITIVE),
    _unary("tanh", "torch.tanh({x})", "2 * tl.sigmoid(2 * {x}) - 1", math.tanh, gives=Range.BOUNDED),
    _unary("silu", "F.silu({x})", "{x} * tl.sigmoid({x})", lambda x: x * _sigmoid(x)),
    _unary(
        "gelu",
        "F.gelu({x})",
        "0.5 * {x} * (1 + tl.erf({x} * 0.70710678))",
        lambda x: 0.5 * x * (1 + math.erf(x / 2**0.5)),
    ),
    _unary(
        "softplus",
        "F.softplus({x})",
        "tl.maximum({x}, 0.0) + tl.log(1 + tl.exp(-tl.abs({x})))",
        _softplus,
        gives=Range.NONNEGATIVE,
    ),
    _unary("abs", "torch.abs({x})", "tl.abs({x})", abs, gives=Range.NONNEGATIVE),
    _unary("square", "torch.square({x})", "{x} * {x}", lambda x: x * x, "pow", gives=Range.NONNEGATIVE),
    _unary("sin", "torch.sin({x})", "tl.sin({x})", math.sin, needs=Range.BOUNDED, gives=Range.BOUNDED),
    _unary("cos", "torch.cos({x})", "tl.cos({x})", math.cos, needs=Range.BOUNDED, gives=Range.BOUNDED),
    _unary("exp", "torch.exp({x})", "tl.exp({x})", math.exp, needs=Range.BOUNDED, gives=Range.POSITIVE),
    _unary(
        "log1p", "torch.log1p({x})", "tl.log(1 + {x})", math.log1p, needs=Range.NONNEGATIVE, gives=Range.NONNEGATIVE
    ),
    _unary("sqrt", "torch.sqrt({x})", "tl.sqrt({x})", math.sqrt, needs=Range.POSITIVE, gives=Range.POSITIVE),
    _unary("elu", "F.elu({x})", "tl.where({x} > 0, {x}, tl.exp({x}) - 1)", lambda x: x if x > 0 else math.exp(x) - 1),
    _unary(
        "hardswish",
        "F.hardswish({x})",
        "{x} * tl.minimum(tl.maximum({x} + 3, 0.0), 6.0) / 6",
        lambda x: x * _clip(x + 3, 0, 6) / 6,
    ),
    _unary(
        "hardsigmoid",
        "F.hardsigmoid({x})",
        "tl.minimum(tl.maximum({x} / 6 + 0.5, 0.0), 1.0)",
        lambda x: _clip(x / 6 + 0.5, 0, 1),
        gives=Range.BOUNDED,
    ),
    _unary(
        "softsign",
        "F.softsign({x})",
        "{x} / (1 + tl.abs({x}))",
        lambda x: x / (1 + abs(x)),
        "abs",
        "add",
        "div",
        gives=Range.BOUNDED,
    ),
)

_WITH_CONSTANT = (
    Operator(
        "times",
        "{x} * {c}",
        "{x} * {c}",
        lambda x, c, y: x * c,
        frozenset({"mul"}),
        constants=(0.5, 0.7, 1.5, 2.0, 2.5),
    ),
    Operator(
        "plus", "{x} + {c}", "{x} + {c}", lambda x, c, y: x + c, frozenset({"add"}), constants=(-1.0, 0.5, 1.0, 1.5)
    ),
    Operator(
        "minus_from", "{c} - {x}", "{c} - {x}", lambda x, c, y: c - x, frozenset({"rsub"}), constants=(0.5, 1.0, 2.0)
    ),
    Operator(
        "divide", "{x} / {c}", "{x} / {c}", lambda x, c, y: x / c, frozenset({"div"}), constants=(1.5, 2.0, 3.0, 4.0)
    ),
    Operator(
        "leaky_relu",
        "F.leaky_relu({x}, {c})",
        "tl.where({x} > 0, {x}, {c} * {x})",
        lambda x, c, y: x if x > 0 else c * x,
        frozenset({"leaky_relu"}),
        constants=(0.1, 0.2, 0.3),
    ),
    Operator(
        "clamp",
        "torch.clamp({x}, -{c}, {c})",
        "tl.minimum(tl.maximum({x}, -{c}), {c})",
        lambda x, c, y: _clip(x, -c, c),
        frozenset({"clamp"}),
        gives=Range.BOUNDED,
        constants=(0.8, 1.0, 1.2),
    ),
)

_WITH_OPERAND = (
    Operator("add_y", "{x} + {y}", "{x} + {y}", lambda x, c, y: x + y, frozenset({"add"}), operand="y"),
    Operator("sub_y", "{x} - {y}", "{x} - {y}", lambda x, c, y: x - y, frozenset({"sub"}), operand="y"),
    Operator("mul_y", "{x} * {y}", "{x} * {y}", lambda x, c, y: x * y, frozenset({"mul"}), operand="y"),
    Operator(
        "max_y",
        "torch.maximum({x}, {y})",
        "tl.maximum({x}, {y})",
        lambda x, c, y: max(x, y),
        frozenset({"maximum"}),
        operand="y",
    ),
    Operator("scale", "{x} * {y}", "{x} * {y}", lambda x, c, y: x * y, frozenset({"mul"}), operand="scale"),
    Operator("shift", "{x} + {y}", "{x} + {y}", lambda x, c, y: x + y, frozenset({"add"}), operand="shift"),
)

OPERATORS = {operator.name: operator for operator in (*_UNARY, *_WITH_CONSTANT, *_WITH_OPERAND)}
