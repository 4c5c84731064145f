"""Correctness: a candidate's outputs against an fp64-anchored, scale-aware tolerance.

With y64 the reference in fp64, yr in its own precision and yc the candidate's output, errors are e_r = |yr - y64| / s
and e_c = |yc - y64| / s, with s the scale of the row (`workers.comparison.measure`). An output passes when it is finite
exactly where the reference is, the 99.9 % quantile of e_c is within `QUANTILE_FACTOR` of the reference's own, the
maximum within `MAX_FACTOR` of it (neither below a floor for the dtype), and its relative L2 error in bounds. Integers
and booleans must be equal. Nothing is skipped, and NaN is no wildcard. Errors of fp32 outputs beyond that may still be
those of a less precise class of products (`workers.comparison.downgrade`).
"""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drkernel_q.correctness import ErrorPattern, Precision
from drkernel_q.evaluation import Outcome
from workers.comparison import downgrade
from workers.comparison.measure import Errors, Expected, comparable, measure, surely_finite
from workers.comparison.pattern import find_pattern

QUANTILE_FACTOR = 8.0
MAX_FACTOR = 32.0
#: What `allclose` in the facts is with, absolute and relative: the tolerance of KernelBench.
CLOSE = 1e-2
#: Smallest error that is held against an output, for its dtype, relative to s; fp32's grows with the square root of
#: the reduction length, up to `FLOOR_FP32_MOST`.
_FLOORS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-12}
_LOWEST_FLOOR = 3e-2
#: Share of whole numbers that may lie a rounding away from others; more are wrong.
_FEW_WRONG = 0.01
FLOOR_FP32_MOST = 1.5e-4
#: Names for errors by their relative L2, and what outputs of 16 bits cannot be more precise than.
_CLASSES = {"exact": 0.0, "fp64": 1e-12, "fp32": 3e-5, "tf32": 1.2e-3, "fp16": 1.2e-3, "bf16": 1e-2, "lower": math.inf}
_HALF = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class Comparison(NamedTuple):
    """How one trial went."""

    outcome: Outcome
    detail: str | None = None
    max_error: float = 0.0
    tolerance: float = 0.0
    relative_l2: float = 0.0
    allclose: bool = True
    label: str = "exact"
    """Name of the arithmetic that the errors look like."""
    precision: Precision = Precision.REFERENCE
    """The class whose tolerance the outputs are within."""
    pattern: ErrorPattern | None = None
    """Where and how they are wrong."""


def compare(expected: Expected, outputs: Sequence[Tensor]) -> Comparison:
    """Compare outputs of the right shapes and dtypes with the reference; the worst output speaks for all."""
    results = _compare_each(expected, outputs)
    wrong = _wrong(results)
    if not wrong:
        return _merged(results)
    found = _explain(expected, outputs, results, wrong)
    if found is not None:
        return _forgiven(_merged(results), found)
    return _with_pattern(_merged(results), wrong[0], expected, outputs[wrong[0]])


def passes(expected: Expected, outputs: Sequence[Tensor]) -> bool:
    """Whether `compare` calls the outputs correct; where they are wrong is not looked for."""
    results = _compare_each(expected, outputs)
    wrong = _wrong(results)
    return not wrong or _explain(expected, outputs, results, wrong) is not None


def _wrong(results: Sequence[Comparison]) -> list[int]:
    return [number for number, result in enumerate(results) if result.outcome is not Outcome.CORRECT]


def _explain(
    expected: Expected, outputs: Sequence[Tensor], results: Sequence[Comparison], wrong: Sequence[int]
) -> downgrade.Downgrade | None:
    """Find the less precise class whose errors those of the wrong outputs are."""
    hopeful = all(_may_be_downgraded(expected.working[number], results[number]) for number in wrong)
    return downgrade.explain(expected, outputs, wrong) if hopeful else None


def _compare_each(expected: Expected, outputs: Sequence[Tensor]) -> list[Comparison]:
    results = []
    for number, output in zip(range(len(expected.working)), outputs, strict=True):
        one = _compare_one(expected, number, output)
        if one.detail is not None and len(outputs) > 1:
            one = one._replace(detail=f"output {number}: {one.detail}")
        results.append(one)
    return results


def _merged(results: Sequence[Comparison]) -> Comparison:
    """Let the first wrong output speak for all, or the one that comes closest to its tolerance."""
    head = next((one for one in results if one.outcome is not Outcome.CORRECT), None)
    head = head or max(results, key=lambda one: one.max_error / max(one.tolerance, 1e-300))
    return head._replace(
        relative_l2=max(one.relative_l2 for one in results),
        allclose=all(one.allclose for one in results),
        label=coarsest(one.label for one in results),
    )


def _may_be_downgraded(working: Tensor, result: Comparison) -> bool:
    return working.dtype is torch.float32 and result.relative_l2 < downgrade.HOPELESS


def _forgiven(result: Comparison, found: downgrade.Downgrade) -> Comparison:
    return result._replace(
        outcome=Outcome.CORRECT,
        detail=None,
        tolerance=found.tolerance,
        label=found.precision.value,
        precision=found.precision,
    )


def _with_pattern(result: Comparison, number: int, expected: Expected, output: Tensor) -> Comparison:
    ruler = expected.rulers[number]
    anchor = expected.working[number] if ruler is None else ruler.anchor
    bounds = (result.tolerance, result.tolerance / MAX_FACTOR)  # many small errors are each within the larger
    patterns = (find_pattern(number, anchor, comparable(output), bound) for bound in bounds)
    return result._replace(pattern=next(filter(None, patterns), None))


def _compare_one(expected: Expected, number: int, output: Tensor) -> Comparison:
    working, ruler = expected.working[number], expected.rulers[number]
    if ruler is None:
        counted = not (working.is_floating_point() or working.is_complex())
        return _compare_exactly(expected, number, output) if counted else Comparison(Outcome.CORRECT)
    dtype = working.dtype if working.is_floating_point() else working.real.dtype
    floor, own = _floor(dtype, expected.reduction), ruler.own
    working, output = comparable(working), comparable(output)
    close = _are_close(working, output)
    quantile_bound = max(QUANTILE_FACTOR * own.quantile, floor)
    max_bound = max(MAX_FACTOR * own.quantile, QUANTILE_FACTOR * own.maximum, 4 * floor)
    l2_bound = max(QUANTILE_FACTOR * own.relative_l2, floor)
    broken = _finite_mismatch(working, output)
    if broken is not None:
        return Comparison(Outcome.WRONG_VALUE, broken, math.inf, max_bound, math.inf, close, "lower")
    of_candidate = measure(ruler.anchor, output, ruler.scale)
    within = (
        of_candidate.quantile <= quantile_bound
        and of_candidate.maximum <= max_bound
        and of_candidate.relative_l2 <= l2_bound
    )
    label = precision_class(of_candidate.relative_l2, dtype)
    detail = None if within else _describe(of_candidate, label, max_bound, quantile_bound, ruler.anchor, output)
    outcome = Outcome.CORRECT if within else Outcome.WRONG_VALUE
    max_error = min(of_candidate.maximum, sys.float_info.max)
    return Comparison(outcome, detail, max_error, max_bound, of_candidate.relative_l2, close, label)


def _are_close(working: Tensor, output: Tensor) -> bool:
    """Do what `torch.allclose` does, with two passes over memory where all is closer than the absolute tolerance."""
    apart = torch.linalg.vector_norm(working - output, ord=math.inf) if working.numel() else 0.0
    return float(apart) < CLOSE or bool(torch.allclose(working, output, atol=CLOSE, rtol=CLOSE))


def _compare_exactly(expected: Expected, number: int, output: Tensor) -> Comparison:
    """Compare whole numbers, which are right if the reference gives them on these inputs or a few roundings away."""
    working, exact = expected.working[number], expected.exact[number]
    equal = working == output
    if exact is not None:  # an index may follow fp64 where fp32 rounds two candidates to a tie
        equal |= exact.to(working.dtype) == output
    wrong = int((~equal).sum())
    if 0 < wrong <= max(_FEW_WRONG * equal.numel(), 1) and expected.nearby is not None:
        for outputs in expected.nearby():
            if [each.shape for each in outputs] == [each.shape for each in expected.working]:
                equal |= outputs[number] == output
            if bool(equal.all()):
                break
        wrong = int((~equal).sum())
    if not wrong:
        return Comparison(Outcome.CORRECT)
    index = int((~equal).flatten().int().argmax())
    where = _position(index, working.shape)
    seen = f"expected {_at(working, index)}, got {_at(output, index)}"
    detail = f"{wrong} of {equal.numel()} elements differ; at {where} {seen}"
    return Comparison(Outcome.WRONG_VALUE, detail, 1.0, 0.0, 1.0, False, "lower")


def _finite_mismatch(working: Tensor, output: Tensor) -> str | None:
    """Describe where one side is NaN or infinite and the other is not, or infinite with another sign."""
    if surely_finite(working) and surely_finite(output):
        return None  # as nearly always, and quickly seen
    same = (torch.isfinite(working) & torch.isfinite(output)) | (working == output) | (working.isnan() & output.isnan())
    if bool(same.all()):
        return None
    index = int((~same).flatten().int().argmax())
    where = _position(index, working.shape)
    return f"at {where} expected {_at(working, index)}, got {_at(output, index)}"


def precision_class(relative_l2: float, dtype: torch.dtype = torch.float32) -> str:
    """Name the arithmetic that a relative L2 error of outputs of this dtype looks like."""
    name = next(name for name, bound in _CLASSES.items() if relative_l2 <= bound)
    return coarsest([name, _HALF[dtype]]) if dtype in _HALF and relative_l2 else name


def coarsest(names: Iterable[str]) -> str:
    """Return the name of the least precise arithmetic among `names`."""
    return max(names, key=list(_CLASSES).index)


def is_degenerate(expected: Expected) -> bool:
    """Whether zeros, or each output's own mean, would pass: then a pass proves nothing (problem flaw G1)."""
    floats = [tensor for tensor in expected.working if tensor.is_floating_point() and tensor.numel() > 1]
    if not floats or len(floats) < len(expected.working):
        return False
    zeros = [torch.zeros_like(tensor) for tensor in expected.working]
    means = [torch.full_like(tensor, float(tensor.double().mean())) for tensor in expected.working]
    guesses = [_compare_each(expected, guess) for guess in (zeros, means)]
    return any(all(one.outcome is Outcome.CORRECT for one in results) for results in guesses)


def _floor(dtype: torch.dtype, reduction: int) -> float:
    floor = _FLOORS.get(dtype, _LOWEST_FLOOR)
    if dtype in (torch.float32, torch.float64):
        return min(floor * math.sqrt(max(reduction, 16)), floor * FLOOR_FP32_MOST / _FLOORS[torch.float32])
    return floor


def _position(index: int, shape: Sequence[int]) -> str:
    position = []
    for size in reversed(shape):
        index, remainder = divmod(index, size)
        position.append(remainder)
    return "[" + ", ".join(str(part) for part in reversed(position)) + "]"


def _at(tensor: Tensor, index: int) -> str:
    value = tensor.detach().reshape(-1)[index].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _describe(
    errors: Errors, label: str, max_bound: float, quantile_bound: float, anchor: Tensor, output: Tensor
) -> str:
    where = _position(errors.worst, anchor.shape)
    looks = f"; the errors look like {label} arithmetic" if label in ("tf32", "fp16", "bf16") else ""
    return (
        f"largest error {errors.maximum:.3g} of the row's scale (allowed {max_bound:.3g}; 99.9 % quantile "
        f"{errors.quantile:.3g}, allowed {quantile_bound:.3g}) at {where}: expected {_at(anchor, errors.worst)}, "
        f"got {_at(output, errors.worst)}{looks}"
    )
