"""Locality: whether each element of an output comes from the elements of the inputs at its own place, and no others.

Where it does, nothing is summed up, and no order of summation can explain an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.comparison.subject import with_leaves
from workers.exchange import integrity
from workers.exchange.shared import leaves

#: Inputs larger than this together are not copied to find out, bytes.
MOST_BYTES = 2**30


def is_local(
    run: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], others: Sequence[Any], outputs: Sequence[Tensor]
) -> bool:
    """Whether `outputs`, which `run` gives for `inputs`, are local in those that have their shape.

    Half of the places, drawn at random, keep their values, the rest gets those of `others`, another draw; then the
    other way round. Outputs at places that keep theirs must stay the same to the bit, and some of the others move.
    """
    shapes = {output.shape for output in outputs}
    tensors, drawn = leaves(inputs), leaves(others)
    alike = [tensor.shape in shapes for tensor in tensors]
    if len(shapes) != 1 or not any(alike) or sum(tensor.nbytes for tensor in tensors) > MOST_BYTES:
        return False
    triples = list(zip(tensors, drawn, alike, strict=True))
    if any(is_alike and (a.shape != b.shape or integrity.same_bits(a, b)) for a, b, is_alike in triples):
        return False
    kept = torch.rand(next(iter(shapes)), device=outputs[0].device) < 0.5  # noqa: PLR2004 - half of them
    try:
        for places in (kept, ~kept):
            mixed = [torch.where(places, a, b) if is_alike else a for a, b, is_alike in triples]
            if not _stay(outputs, leaves([run(with_leaves(inputs, mixed))]), places):
                return False
    except (torch.AcceleratorError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - trusted code raises what it likes about values that nobody drew for it
        return False
    return True


def _stay(before: Sequence[Tensor], after: Sequence[Tensor], places: Tensor) -> bool:
    """Whether all stays the same at `places`, and something moves elsewhere."""
    for old, new in zip(before, after, strict=True):
        same = (old == new) | (old.isnan() & new.isnan())
        if not bool((same | ~places).all()) or bool(same.all()):
            return False
    return True
