"""Locality: whether each element of an output comes from the elements of the inputs at its own place, and no others.

Where it does, nothing is summed up, and no order of summation can explain an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workers import integrity
from workers.shared import leaves
from workers.subject import with_leaves

#: Inputs larger than this together are not copied to find out, bytes.
MOST_BYTES = 2**30


def is_local(run: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether all outputs of `run` are local in those inputs that have their shape; the other inputs are left alone.

    Half of the places, drawn at random, keep their values, the rest gets those of `others`, another draw; then the
    other way round. Outputs at places that keep theirs must stay the same to the bit, and some of the others move.
    """
    tensors, drawn = leaves(inputs), leaves(others)
    if sum(tensor.nbytes for tensor in tensors) > MOST_BYTES:
        return False
    try:
        before = leaves([run(inputs)])
        return _stay(run, inputs, tensors, drawn, before)
    except (torch.AcceleratorError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - trusted code raises what it likes about values that nobody drew for it
        return False


def _stay(
    run: Callable[[Sequence[Any]], Any],
    inputs: Sequence[Any],
    tensors: Sequence[Tensor],
    drawn: Sequence[Tensor],
    before: Sequence[Tensor],
) -> bool:
    shapes = {output.shape for output in before}
    alike = [tensor.shape in shapes for tensor in tensors]
    if len(shapes) != 1 or not any(alike):
        return False
    pairs = zip(tensors, drawn, alike, strict=True)
    if any(is_alike and (a.shape != b.shape or integrity.same_bits(a, b)) for a, b, is_alike in pairs):
        return False
    kept = torch.rand(next(iter(shapes)), device=before[0].device) < 0.5  # noqa: PLR2004 - half of them
    for places in (kept, ~kept):
        mixed = [
            torch.where(places, a, b) if is_alike else a for a, b, is_alike in zip(tensors, drawn, alike, strict=True)
        ]
        after = leaves([run(with_leaves(inputs, mixed))])
        for old, new in zip(before, after, strict=True):
            same = (old == new) | (old.isnan() & new.isnan())
            if not bool((same | ~places).all()) or bool(same.all()):
                return False
    return True
