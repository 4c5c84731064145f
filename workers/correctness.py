"""Correctness: a candidate's outputs against an fp64-anchored, scale-aware tolerance.

With y64 the reference in fp64, yr in its own precision and yc the candidate's output, errors are e_r = |yr - y64| / s
and e_c = |yc - y64| / s, where s is the RMS of the row (last dimension), at least `ROW_FLOOR` of the whole tensor's.
An output passes when it is finite exactly where the reference is, the 99.9 % quantile of e_c is within
`QUANTILE_FACTOR` of the reference's own, the maximum within `MAX_FACTOR` of it (neither below a floor for the dtype),
and its relative L2 error in bounds. Integers and booleans must be equal. Nothing is skipped, and NaN is no wildcard.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drkernel_q.evaluation import Outcome

QUANTILE = 0.999
QUANTILE_FACTOR = 8.0
MAX_FACTOR = 32.0
ROW_FLOOR = 0.05
#: Smallest error that is held against an output, for its dtype, relative to s; fp32's grows with the square root of
#: the reduction length, up to `FLOOR_FP32_MOST`.
_FLOORS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-12}
_LOWEST_FLOOR = 3e-2
FLOOR_FP32_MOST = 1.5e-4
#: Elements compared at a time, and elements that a quantile is taken over (a random sample beyond that).
CHUNK = 2**25
SAMPLE = 2**21
_CLASSES = ((0.0, "exact"), (1e-12, "fp64"), (3e-5, "fp32"), (1.2e-3, "tf32"), (1e-2, "bf16"))


class Expected(NamedTuple):
    """What the reference gave for one trial."""

    skeleton: Any
    working: list[Tensor]
    """Outputs in the reference's own precision."""
    exact: list[Tensor | None]
    """Outputs of the same computation in fp64; None for integers and booleans, and where fp64 could not be run."""
    reduction: int
    """Longest dimension of inputs and parameters: a bound on the length of a reduction."""


def outline(expected: Expected) -> Expected:
    """Keep the structure, shapes and dtypes of what is expected, without the memory of its values."""
    shapes = [torch.empty_like(tensor, device="meta") for tensor in expected.working]
    return expected._replace(working=shapes, exact=[None] * len(shapes))


class Errors(NamedTuple):
    """Error of one output: of one side against fp64."""

    quantile: float
    maximum: float
    relative_l2: float
    worst: int
    """Flat index of the largest error."""


class Comparison(NamedTuple):
    """How one trial went."""

    outcome: Outcome
    detail: str | None = None
    max_error: float = 0.0
    tolerance: float = 0.0
    relative_l2: float = 0.0
    allclose: bool = True


def compare(expected: Expected, outputs: Sequence[Tensor]) -> Comparison:
    """Compare outputs of the right shapes and dtypes with the reference; the worst output speaks for all."""
    worst = Comparison(Outcome.CORRECT)
    for number, (working, exact, output) in enumerate(zip(expected.working, expected.exact, outputs, strict=True)):
        one = _compare_one(working, exact, output, expected.reduction)
        if one.detail is not None and len(outputs) > 1:
            one = one._replace(detail=f"output {number}: {one.detail}")
        if worst.outcome is Outcome.CORRECT and one.outcome is not Outcome.CORRECT:
            worst = one._replace(allclose=one.allclose and worst.allclose)
        elif worst.outcome is Outcome.CORRECT:
            head = max((worst, one), key=lambda side: side.max_error / max(side.tolerance, 1e-300))
            worst = head._replace(
                relative_l2=max(worst.relative_l2, one.relative_l2), allclose=worst.allclose and one.allclose
            )
    return worst


def _compare_one(working: Tensor, exact: Tensor | None, output: Tensor, reduction: int) -> Comparison:
    if not working.is_floating_point():
        if working.is_complex():
            return _compare_one(
                torch.view_as_real(working),
                None if exact is None else torch.view_as_real(exact),
                torch.view_as_real(output),
                reduction,
            )
        return _compare_exactly(working, exact, output)
    if not working.numel():
        return Comparison(Outcome.CORRECT)
    floor = _floor(working.dtype, reduction)
    if working.dtype.itemsize == 1:  # torch computes nothing in fp8
        working, output = working.float(), output.float()
    close = bool(torch.allclose(working, output, atol=1e-2, rtol=1e-2))
    anchor = working if exact is None else _anchor(working, exact)
    broken = _finite_mismatch(working, output)
    if broken is not None:
        return Comparison(Outcome.WRONG_VALUE, broken, math.inf, 0.0, math.inf, close)
    scale = row_scale(anchor)
    of_reference = measure(anchor, working, scale)
    of_candidate = measure(anchor, output, scale)
    quantile_bound = max(QUANTILE_FACTOR * of_reference.quantile, floor)
    max_bound = max(MAX_FACTOR * of_reference.quantile, QUANTILE_FACTOR * of_reference.maximum, 4 * floor)
    l2_bound = max(QUANTILE_FACTOR * of_reference.relative_l2, floor)
    within = (
        of_candidate.quantile <= quantile_bound
        and of_candidate.maximum <= max_bound
        and of_candidate.relative_l2 <= l2_bound
    )
    detail = None if within else _describe(of_candidate, max_bound, quantile_bound, anchor, output)
    outcome = Outcome.CORRECT if within else Outcome.WRONG_VALUE
    max_error = min(of_candidate.maximum, sys.float_info.max)
    return Comparison(outcome, detail, max_error, max_bound, of_candidate.relative_l2, close)


def _anchor(working: Tensor, exact: Tensor) -> Tensor:
    """Return fp64, but the reference's own value where one of them overflows: that is no measure of its rounding."""
    finite = torch.isfinite(working) & torch.isfinite(exact)
    return exact if bool(finite.all()) else torch.where(finite, exact, working.to(exact.dtype))


def _compare_exactly(working: Tensor, exact: Tensor | None, output: Tensor) -> Comparison:
    equal = working == output
    if exact is not None:  # an index may follow fp64 where fp32 rounds two candidates to a tie
        equal |= exact.to(working.dtype) == output
    if bool(equal.all()):
        return Comparison(Outcome.CORRECT)
    wrong = int((~equal).sum())
    index = int((~equal).flatten().int().argmax())
    where = _position(index, working.shape)
    seen = f"expected {_at(working, index)}, got {_at(output, index)}"
    detail = f"{wrong} of {equal.numel()} elements differ; at {where} {seen}"
    return Comparison(Outcome.WRONG_VALUE, detail, 1.0, 0.0, 1.0, False)


def _finite_mismatch(working: Tensor, output: Tensor) -> str | None:
    """Describe where one side is NaN or infinite and the other is not, or infinite with another sign."""
    both_finite = torch.isfinite(working) & torch.isfinite(output)
    if bool(both_finite.all()):
        return None
    same = both_finite | (working == output) | (working.isnan() & output.isnan())
    if bool(same.all()):
        return None
    index = int((~same).flatten().int().argmax())
    where = _position(index, working.shape)
    return f"at {where} expected {_at(working, index)}, got {_at(output, index)}"


def row_scale(anchor: Tensor) -> Tensor:
    """Return s for every row, as fp64 of shape (rows, 1)."""
    rows = _rows(anchor)
    squares = torch.cat([_finite(part).square().mean(dim=1) for _, part in _chunks(rows)])
    whole = squares.mean().sqrt()
    return squares.sqrt().clamp_min(max(float(whole) * ROW_FLOOR, 1e-30)).unsqueeze(1)


def measure(anchor: Tensor, other: Tensor, scale: Tensor) -> Errors:
    """Measure |other - anchor| / scale and the relative L2 error, in fp64, a chunk of rows at a time."""
    anchor_rows, other_rows = _rows(anchor), _rows(other)
    difference = norm = maximum = 0.0
    worst = 0
    kept: list[Tensor] = []
    share = min(1.0, SAMPLE / max(anchor.numel(), 1))
    for start, part in _chunks(anchor_rows):
        exact = _finite(part)
        error = (_finite(other_rows[start : start + len(part)]) - exact).abs_()
        difference += float(error.square().sum())
        norm += float(exact.square().sum())
        error /= scale[start : start + len(part)]
        flat = error.flatten()
        top = int(flat.argmax())
        if float(flat[top]) > maximum:
            maximum, worst = float(flat[top]), start * anchor_rows.shape[1] + top
        picks = max(int(len(flat) * share), 1)
        kept.append(flat if share >= 1.0 else flat[torch.randint(len(flat), (picks,), device=flat.device)])
    sample = torch.cat(kept)
    position = min(math.ceil(QUANTILE * len(sample)), len(sample))
    quantile = float(sample.kthvalue(max(position, 1)).values)
    return Errors(quantile, maximum, math.sqrt(difference / norm) if norm > 0 else float(difference > 0), worst)


def is_as_exact(expected: Expected, usual: Expected) -> bool:
    """Whether the reference is finite and about as exact here as it usually is."""
    for working, exact, usual_working, usual_exact in zip(*expected[1:3], *usual[1:3], strict=True):
        if not (working.is_floating_point() and working.numel()) or exact is None or usual_exact is None:
            continue
        if _is_finite(usual_working) and not _is_finite(working):
            return False
        here = measure(exact, working, row_scale(exact))
        usually = measure(usual_exact, usual_working, row_scale(usual_exact))
        if here.quantile > 4 * usually.quantile or here.maximum > 4 * usually.maximum:
            return False
    return True


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor).all())


def precision_class(relative_l2: float) -> str:
    """Name the arithmetic that a relative L2 error looks like."""
    return next((name for bound, name in _CLASSES if relative_l2 <= bound), "lower")


def is_degenerate(expected: Expected) -> bool:
    """Whether zeros, or each output's own mean, would pass: then a pass proves nothing (problem flaw G1)."""
    floats = [tensor for tensor in expected.working if tensor.is_floating_point() and tensor.numel() > 1]
    if not floats or len(floats) < len(expected.working):
        return False
    zeros = [torch.zeros_like(tensor) for tensor in expected.working]
    means = [torch.full_like(tensor, float(tensor.double().mean())) for tensor in expected.working]
    return any(compare(expected, guess).outcome is Outcome.CORRECT for guess in (zeros, means))


def _floor(dtype: torch.dtype, reduction: int) -> float:
    floor = _FLOORS.get(dtype, _LOWEST_FLOOR)
    if dtype in (torch.float32, torch.float64):
        return min(floor * math.sqrt(max(reduction, 16)), floor * FLOOR_FP32_MOST / _FLOORS[torch.float32])
    return floor


def _rows(tensor: Tensor) -> Tensor:
    width = tensor.shape[-1] if tensor.dim() > 1 else max(tensor.numel(), 1)
    return tensor.detach().reshape(-1, max(width, 1))


def _chunks(rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    step = max(CHUNK // rows.shape[1], 1)
    for start in range(0, len(rows), step):
        yield start, rows[start : start + step]


def _finite(tensor: Tensor) -> Tensor:
    return torch.nan_to_num(tensor.double(), nan=0.0, posinf=0.0, neginf=0.0)


def _position(index: int, shape: Sequence[int]) -> str:
    position = []
    for size in reversed(shape):
        index, remainder = divmod(index, size)
        position.append(remainder)
    return "[" + ", ".join(str(part) for part in reversed(position)) + "]"


def _at(tensor: Tensor, index: int) -> str:
    value = tensor.detach().reshape(-1)[index].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _describe(errors: Errors, max_bound: float, quantile_bound: float, anchor: Tensor, output: Tensor) -> str:
    where = _position(errors.worst, anchor.shape)
    label = precision_class(errors.relative_l2)
    looks = f"; the errors look like {label} arithmetic" if label in ("tf32", "bf16") else ""
    return (
        f"largest error {errors.maximum:.3g} of the row's scale (allowed {max_bound:.3g}; 99.9 % quantile "
        f"{errors.quantile:.3g}, allowed {quantile_bound:.3g}) at {where}: expected {_at(anchor, errors.worst)}, "
        f"got {_at(output, errors.worst)}{looks}"
    )
