"""Pattern: where an output is wrong, and what the wrong values have in common."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from drkernel_q.correctness import ErrorPattern
from workers.comparison.measure import chunks_of, finite, row_scale, rows_of

#: Wrong elements that are looked at to say what they have in common.
SAMPLE = 2**20
#: How well a factor, an offset or a transposition must fit to be named.
_FIT = 0.01
#: A progression of fewer places is an accident.
_LEAST_PLACES = 3
_PERCENT = 0.01


def find_pattern(number: int, anchor: Tensor, output: Tensor, bound: float) -> ErrorPattern | None:
    """Describe output `number` against what is right; `bound` is in units of each row's scale (0 for integers)."""
    wrong = _wrong_elements(anchor, output, bound)
    count = int(wrong.sum())
    if not count:
        return None
    return ErrorPattern(
        output=number,
        shape=tuple(anchor.shape),
        wrong=count,
        elements=anchor.numel(),
        region=region_of(wrong, count),
        looks=_looks(anchor, output, wrong, count),
    )


def _wrong_elements(anchor: Tensor, output: Tensor, bound: float) -> Tensor:
    """Return a mask in the shape of the output; NaN and infinities must stand where they should."""
    if not anchor.is_floating_point():
        return anchor != output
    scale = row_scale(anchor)
    parts = []
    rows, others = rows_of(anchor), rows_of(output)
    for start, part in chunks_of(rows):
        here = slice(start, start + len(part))
        other = others[here].to(part.dtype)
        fits = torch.isfinite(part) & torch.isfinite(other) | (part == other) | (part.isnan() & other.isnan())
        parts.append(~fits | ((finite(other) - finite(part)).abs() > bound * scale[here]))
    return torch.cat(parts).reshape(anchor.shape)


def region_of(wrong: Tensor, count: int) -> str:
    """Say where the true elements of a mask lie: in words for each dimension that they do not fill."""
    if count == wrong.numel():
        return "every element"
    parts = []
    box = 1
    for dimension, size in enumerate(wrong.shape):
        others = [other for other in range(wrong.dim()) if other != dimension]
        places = (wrong.any(dim=others) if others else wrong).nonzero().flatten().tolist()
        words = _places(places, size, *_names(dimension, wrong.dim()))
        parts += [words] if words else []
        box *= len(places) if words else size
    return (", ".join(parts) or "all over the output") + _share(count / box)


def _share(share: float) -> str:
    if share >= 1:
        return ""
    percent = f"{min(share, 0.99):.0%}" if share >= _PERCENT else "less than 1%"
    return f" ({percent} of the elements there)"


def _names(dimension: int, dimensions: int) -> tuple[str, str]:
    """Name one place of a dimension, and several."""
    if dimensions == 1:
        return "element", "elements"
    if dimension == dimensions - 1:
        return "column", "columns"
    if dimension == dimensions - 2:
        return "row", "rows"
    return f"index of dimension {dimension}", f"indices of dimension {dimension}"


def _places(places: Sequence[int], size: int, one: str, many: str) -> str | None:
    """Put places of one dimension into words; None when they are most of it, without an order."""
    first, last, count = places[0], places[-1], len(places)
    if count == size:
        return None
    if count == 1:
        return f"the last {one}" if last == size - 1 else f"{one} {first}"
    if last - first == count - 1:
        if last == size - 1:
            return f"the last {count} {many}"
        return f"{many} {first}..{last}" if first else f"the first {count} {many}"
    step = places[1] - first
    if count >= _LEAST_PLACES and all(after - before == step for before, after in pairwise(places)):
        return f"{many} {first}, {places[1]}, {places[2]}, ... {last}"
    return f"{count} of {size} {many}" if count <= size // 2 else None


def _looks(anchor: Tensor, output: Tensor, wrong: Tensor, count: int) -> str | None:
    got, right = _sampled(anchor, output, wrong, count)
    if bool(got.isnan().all()):
        return "NaN"
    if not bool(got.isfinite().all()):
        return "infinite" if bool(got.isinf().all()) else "partly NaN or infinite"
    if not bool(got.any()):
        return "zeros"
    if len(got) > 1 and bool((got == got[0]).all()):
        return f"all equal to {float(got[0]):.4g}"
    square = anchor.dim() > 1 and anchor.shape[-1] == anchor.shape[-2] > 1
    if square and _fits(output, anchor.mT):
        return "transposed"
    return _relation(got, right) if len(got) > 1 and bool(right.isfinite().all()) else None


def _sampled(anchor: Tensor, output: Tensor, wrong: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return wrong values and right ones, as fp64; of very many an even sample."""
    step = max(count // SAMPLE, 1)
    where = wrong.flatten()[::step].nonzero().flatten() * step
    if not len(where):
        where = wrong.flatten().nonzero().flatten()
    return output.detach().reshape(-1)[where].double(), anchor.detach().reshape(-1)[where].double()


def _fits(output: Tensor, other: Tensor) -> bool:
    norm = float(finite(other).square().sum())
    return norm > 0 and float((finite(output) - finite(other)).square().sum()) <= _FIT**2 * norm


def _relation(got: Tensor, right: Tensor) -> str | None:
    """Name a factor or an offset that leads from the right values to the wrong ones."""
    norm = float(right.square().sum())
    factor = float((got * right).sum()) / norm if norm > 0 else 0.0
    if abs(factor) > _FIT and abs(factor - 1) > _FIT and _fits(got, factor * right):
        inverted = math.isclose(factor, -1, rel_tol=_FIT)
        return "with the sign inverted" if inverted else f"{factor:.4g} times what they should be"
    offset = float((got - right).mean())
    spread = float((got - right).std())
    if spread <= _FIT * abs(offset):
        return f"{abs(offset):.4g} {'more' if offset > 0 else 'less'} than they should be"
    return None
