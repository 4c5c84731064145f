"""Recipes of problems: drawn from a random generator, level by level, and checked by numbers."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from drkernel_q.curriculum.operator import OPERATORS, Operator, Range
from drkernel_q.curriculum.part import (
    COLUMNS,
    OPERANDS,
    PRODUCTS,
    REDUCTIONS,
    ROWS,
    Part,
    Product,
    Recipe,
    Reduction,
    Step,
    Values,
)

LEVELS = (1, 2, 3)
#: Draws until a recipe passes its checks.
_ATTEMPTS = 1000
#: Least standard deviation of outputs over their root mean square: neither zeros nor a constant come near them.
_LEAST_SPREAD = 0.1
#: Smallest root mean square of outputs, and largest magnitude of values.
_LEAST_SCALE = 1e-3
_LARGEST = 200.0
#: Two outputs differ if more than this share of values is apart by more than this share of their scale.
_LEAST_SHARE, _LEAST_DISTANCE = 0.2, 0.05

#: How much likelier an operator is that fits at few places.
_RARE = 8

#: What may follow outputs that are small because rows are long.
_PRODUCTS_ONLY = ("times", "scale", "mul_y")


def draw_recipe(draw: random.Random, level: int) -> Recipe:
    """Draw a recipe that is worth being asked for: see `is_sound`."""
    draws = {
        1: partial(_elementwise, draw),
        2: partial(_rows, draw, draw.choice(REDUCTIONS)),
        3: partial(_product, draw, draw.choice(PRODUCTS)),
    }
    for _ in range(_ATTEMPTS):
        recipe = draws[level]()
        if recipe is not None and is_sound(recipe):
            return recipe
    raise RuntimeError(f"no recipe of level {level} passed its checks")  # parts were taken away


@cache
def sampled() -> Mapping[str, list[float]]:
    """Numbers that look like inputs, the same for all checks; `rows` differ in place and width."""
    draw = random.Random(0)  # noqa: S311 - reproducible, not secret
    given = {name: [draw.gauss(0, 1) for _ in range(ROWS * COLUMNS)] for name in ("x", *OPERANDS, "bias")}
    rows = [(draw.uniform(0.5, 1.5), draw.gauss(0, 1.5)) for _ in range(ROWS)]
    given["rows"] = [draw.gauss(0, 1) * width + place for width, place in rows for _ in range(COLUMNS)]
    return given


def is_sound(recipe: Recipe) -> bool:
    """Whether outputs vary, stay small, and depend on every step."""
    result = computed(recipe)
    return result is not None and _varies(result) and all(_differ(result, computed(r)) for r in _left_out(recipe))


def computed(recipe: Recipe, values: Values | None = None) -> list[float] | None:
    """Compute a recipe, of what inputs look like if no values are given; None where it has no value."""
    result = list(values or _inputs(recipe))
    try:
        for part in recipe:
            result = part.numbers(result, sampled())
    except (ValueError, OverflowError):
        return None
    return result


def reach(recipe: Recipe, place: int) -> float:
    """Share of the outputs that notice when the values before the part at `place` change a little."""
    values = computed(recipe[:place], _inputs(recipe))
    if values is None:
        return 0.0
    result = computed(recipe[place:], values)
    other = computed(recipe[place:], [value * 1.01 + 1e-3 for value in values])
    if result is None or other is None:
        return 0.0
    return sum(left != right for left, right in zip(result, other, strict=True)) / len(result)


def _inputs(recipe: Recipe) -> Values:
    by_row = any(isinstance(part, Reduction) for part in recipe)
    return sampled()["rows" if by_row else "x"]


def corrupted(draw: random.Random, recipe: Recipe) -> Recipe | None:
    """Change a recipe so that its outputs are visibly others: another constant, order, or a step left out.

    None where every such change leaves the domain of some part.
    """
    result = computed(recipe)
    changes = [*_other_constants(recipe), *_other_orders(recipe), *_left_out(recipe)]
    draw.shuffle(changes)
    for change in changes:
        other = computed(change)
        if result and other and len(other) == len(result) and all(map(math.isfinite, other)) and _differ(result, other):
            return change
    return None


def _elementwise(draw: random.Random) -> Recipe | None:
    return _steps(draw, draw.randint(2, 5), list(OPERATORS.values()))


def _rows(draw: random.Random, reduction: Reduction) -> Recipe | None:
    before, after = draw.choice(((0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (1, 2), (2, 1)))
    unary = [operator for operator in OPERATORS.values() if operator.operand is None]
    used = set(reduction.kernels)
    first = _steps(draw, before, unary, used=used)
    for step in first or ():
        used |= step.kernels
    last = _steps(draw, after, _after(reduction, unary), used=used)
    return None if first is None or last is None else (*first, reduction, *last)


def _after(reduction: Reduction, unary: list[Operator]) -> list[Operator]:
    if reduction.tiny:
        return [OPERATORS[name] for name in _PRODUCTS_ONLY]
    return unary if reduction.scalar else list(OPERATORS.values())


def _product(draw: random.Random, product: Product) -> Recipe | None:
    steps = _steps(draw, draw.randint(1, 4), list(OPERATORS.values()))
    return None if steps is None else (product, *steps)


def _steps(
    draw: random.Random, length: int, allowed: Sequence[Operator], used: set[str] | None = None
) -> tuple[Step, ...] | None:
    """Draw operators that fit behind each other, none by a kernel that torch runs already; None if none fits."""
    steps: list[Step] = []
    used, taken, given = set(used or ()), set(), Range.ANY
    for _ in range(length):
        fitting = [each for each in allowed if each.follows(given) and not each.kernels & used]
        fitting = [each for each in fitting if each.operand not in taken]
        if not fitting:
            return None
        (operator,) = draw.choices(fitting, [1 if each.needs is Range.ANY else _RARE for each in fitting])
        steps.append(Step(operator, draw.choice(operator.constants) if operator.constants else 0.0))
        used |= operator.kernels
        if operator.operand:
            taken.add(operator.operand)
        given = operator.gives
    return tuple(steps)


def _varies(result: Values) -> bool:
    if not all(map(math.isfinite, result)) or max(map(abs, result)) > _LARGEST:
        return False
    mean, scale = sum(result) / len(result), _scale(result)
    return scale > _LEAST_SCALE and _scale([value - mean for value in result]) > _LEAST_SPREAD * scale


def _differ(result: Values, other: Values | None) -> bool:
    """Whether two outputs can be told apart at a glance; what has no value differs."""
    if other is None or len(other) != len(result):
        return True
    distance = _LEAST_DISTANCE * _scale(result)
    apart = sum(not abs(left - right) <= distance for left, right in zip(result, other, strict=True))
    return apart > _LEAST_SHARE * len(result)


def _scale(values: Values) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _other_constants(recipe: Recipe) -> Iterator[Recipe]:
    for place, part in enumerate(recipe):
        if isinstance(part, Step):
            others = [constant for constant in part.operator.constants if constant != part.constant]
            yield from (_with(recipe, place, replace(part, constant=constant)) for constant in others)


def _other_orders(recipe: Recipe) -> Iterator[Recipe]:
    for place, (left, right) in enumerate(pairwise(recipe)):
        if isinstance(left, Step) and isinstance(right, Step):
            yield (*recipe[:place], right, left, *recipe[place + 2 :])


def _left_out(recipe: Recipe) -> Iterator[Recipe]:
    for place, part in enumerate(recipe):
        if isinstance(part, Step):
            yield (*recipe[:place], *recipe[place + 1 :])


def _with(recipe: Recipe, place: int, part: Part) -> Recipe:
    return (*recipe[:place], part, *recipe[place + 1 :])
