"""Structure: whether outputs, as a candidate's process describes them, are nested, shaped and typed as is expected."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from drkernel_q.evaluation import Outcome
from workers.comparison.measure import Expected
from workers.exchange.shared import scalars_of, shape_of
from workers.judging.claim import claimed_text


def structure_fault(reply: Mapping[str, Any], expected: Expected, *, scalars: bool) -> tuple[Outcome, str] | None:
    """Compare nesting, shapes and dtypes with the reference's, and `scalars` too; return what is wrong.

    Raises:
        AttributeError, LookupError, RecursionError, TypeError, ValueError: a broken description.
    """
    if {"D3", "C11"} & set(reply["codes"]):
        return Outcome.RUNTIME_ERROR, "ModelNew returned something else than plain dense tensors"
    if shape_of(reply["skeleton"]) != shape_of(expected.skeleton):
        return Outcome.WRONG_SHAPE, "the outputs are nested or counted otherwise than the reference's"
    if scalars and not same_scalars(scalars_of(reply["skeleton"]), expected):
        return Outcome.WRONG_VALUE, "a number beside the tensors is not the reference's"
    shapes = [(str(dtype), [int(size) for size in shape]) for dtype, shape in reply["shapes"]]
    if len(shapes) != len(expected.working):
        raise ValueError("more or fewer shapes than outputs")
    pairs = list(zip(shapes, expected.working, strict=True))
    for (_, shape), working in pairs:
        if shape != list(working.shape):
            return Outcome.WRONG_SHAPE, claimed_text(f"expected shape {list(working.shape)}, got {shape}")
    for (dtype, _), working in pairs:
        if dtype != name_of(working.dtype):
            return Outcome.WRONG_DTYPE, claimed_text(f"expected dtype {name_of(working.dtype)}, got {dtype}")
    return None


def same_scalars(claimed: Sequence[Any], expected: Expected) -> bool:
    """Whether the numbers beside the tensors are those of the reference."""
    wanted = scalars_of(expected.skeleton)
    return len(claimed) == len(wanted) and all(map(_same_scalar, claimed, wanted))


def _same_scalar(claimed: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):  # most likely an `item()` of what was computed in fp32
        close = math.isclose(claimed, wanted, rel_tol=1e-3, abs_tol=1e-6)
        return close or (math.isnan(claimed) and math.isnan(wanted))
    return type(claimed) is type(wanted) and bool(claimed == wanted)


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype as it crosses between processes."""
    return str(dtype).removeprefix("torch.")
