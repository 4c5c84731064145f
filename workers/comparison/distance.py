"""Distance: how far outputs of a reference lie apart, and how large they are; in fp64, a chunk of rows at a time."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workers.comparison.measure import chunks_of, rows_of


def is_real(tensor: Tensor) -> bool:
    """Whether elements are no whole numbers and no truth values."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_whole(tensor: Tensor) -> bool:
    """Whether elements are whole numbers, which may be indices."""
    return not is_real(tensor) and tensor.dtype is not torch.bool


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite."""
    return bool(torch.isfinite(_plain(tensor)).all())


def size_bytes(tensor: Tensor) -> int:
    """Return the size of the elements."""
    return tensor.numel() * tensor.element_size()


def distance(base: Tensor, other: Tensor) -> float:
    """Return the relative L2 distance from `base`; of whole numbers, the share that differs."""
    if not is_real(base):
        return float((base != other).sum()) / max(base.numel(), 1)
    rows, other_rows = rows_of(_plain(base)), rows_of(_plain(other))
    apart = size = 0.0
    for start, part in chunks_of(rows):
        wide = part.double()
        size += float(wide.square().sum())
        apart += float((other_rows[start : start + len(part)].double() - wide).square_().sum())
    return math.sqrt(apart / size) if size else float(apart > 0)


def spread(base: Sequence[Tensor], others: Sequence[Tensor]) -> float | None:
    """Return the largest distance; None when outputs have other shapes, or are not finite."""
    if [each.shape for each in base] != [each.shape for each in others]:
        return None
    return largest([distance(*pair) for pair in zip(base, others, strict=True)])


def largest(values: Sequence[float]) -> float | None:
    """Return the largest of the values; None when there is none, or one is not finite."""
    return max(values) if values and all(map(math.isfinite, values)) else None


def moments(outputs: Sequence[Tensor]) -> tuple[float | None, float | None]:
    """Return root mean square and standard deviation over all elements; None when they are not finite."""
    count, total, squares = 0, 0.0, 0.0
    for output in outputs:
        for _, part in chunks_of(rows_of(_plain(output))):
            wide = part.double()
            count += wide.numel()
            total += float(wide.sum())
            squares += float(wide.square().sum())
    if not count or not math.isfinite(total + squares):
        return None, None
    return math.sqrt(squares / count), math.sqrt(max(squares / count - (total / count) ** 2, 0.0))


def typical(output: Tensor) -> Any:
    """Return the number that an output could be taken for: its mean; of other than floating-point ones the first."""
    if not output.numel():
        return 0
    if not output.is_floating_point():
        return output.flatten()[0].item()
    return sum(float(part.double().sum()) for _, part in chunks_of(rows_of(_plain(output)))) / output.numel()


def _plain(tensor: Tensor) -> Tensor:
    """Return numbers that torch can add up: of complex ones both parts, fp8 as fp32."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor
