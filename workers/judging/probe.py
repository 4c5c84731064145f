"""Probes: inputs made from drawn ones, on which an honest kernel is as right as on any other.

They stay within the reference's domain as far as can be told from drawn values, and leave zeros where they are, so that
triangular and sparse inputs keep their structure.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workers.exchange import integrity
from workers.exchange.shared import unflatten
from workers.judging.session import pack_inputs

_WIDE, AMPLIFICATION = 1.5, 16.0
#: Changes a contiguous tensor in place, at places that are drawn.
Change = Callable[[Tensor, Random], None]
#: By how much inputs that are always the same are moved at most, and how many truth values become their opposite.
_MOVED, _TURNED = 0.1, 1 / 16
#: How far from an extreme value an element ends, as a share of the way to it.
_SHORT = 1 / 128
#: Different numbers of which labels are made, and how many elements are looked at for that.
_FEW, _LOOKED_AT = 4, 4096
#: Fewer numbers ascend by chance.
_ROW = 8
#: Far below what fp16 can hold, and far above what fp32 cannot.
SMALL = 2.0**-26


class Recipe(NamedTuple):
    """How the inputs of a probe were made, so that they can be made again."""

    inputs: int
    """Seed of the inputs that were changed."""
    change: Change
    places: int
    """Seed of where."""

    def change_of(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Change the inputs of that seed; None when none can be changed so."""
        return changed(inputs, self.change, Random(self.places))  # noqa: S311 - of a seed that is a secret


def changed(inputs: Sequence[Any], change: Change, draw: Random) -> list[Any] | None:
    """Return copies of `inputs` with `change` made to one floating-point tensor of them.

    None when there is none, or when the change leaves it as it is: then nothing is probed.
    """
    skeletons, tensors, _, _ = pack_inputs(inputs)
    copies = [tensor.clone() for tensor in tensors]
    # fp8 can be neither compared nor sorted in torch.
    wide = [tensor for tensor in copies if tensor.is_floating_point() and tensor.dtype.itemsize > 1]
    open_to_change = [tensor for tensor in wide if tensor.numel() > 1]
    if not open_to_change:
        return None
    chosen = draw.choice(open_to_change)
    plain = chosen.contiguous()
    before = plain.clone()
    change(plain, draw)
    if integrity.same_bits(before, plain):
        return None
    chosen.copy_(plain)
    return [unflatten(skeleton, copies) for skeleton in skeletons]


def with_constants_moved(inputs: Sequence[Any], others: Sequence[int]) -> list[Any] | None:
    """Return `inputs` with other values for floating-point tensors and masks that are the same under another seed.

    `others` are the fingerprints of that draw. What lies between 0 and 1, or -1 and 1, stays there. None when no tensor
    can be moved.
    """
    skeletons, tensors, _, _ = pack_inputs(inputs)
    same = [integrity.fingerprint(tensor) == other for tensor, other in zip(tensors, others, strict=False)]
    moved = [_moved(tensor) if constant else tensor for tensor, constant in zip(tensors, same, strict=False)]
    if all(one is another for one, another in zip(moved, tensors, strict=False)):
        return None
    return [unflatten(skeleton, moved) for skeleton in skeletons]


def _moved(tensor: Tensor) -> Tensor:
    """Bring every number nearer to zero by up to a tenth, and zeros away from it where there is nothing else.

    Truth values are only touched where all are the same: others are more likely to be a structure, as causal masks are.
    """
    if tensor.dtype is torch.bool and tensor.numel() > 1 and bool(tensor.all() | ~tensor.any()):
        return tensor ^ (torch.rand(tensor.shape, device=tensor.device) < _TURNED)
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1 or not tensor.numel():
        return tensor
    noise = _MOVED * torch.rand_like(tensor)
    return tensor * (1 - noise) if bool(tensor.any()) else noise


def with_each(values: Sequence[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    """Return nested values with every tensor replaced by what `change` makes of it."""
    skeletons, tensors, _, _ = pack_inputs(values)
    changed = [change(tensor) for tensor in tensors]
    return [unflatten(skeleton, changed) for skeleton in skeletons]


def small(tensor: Tensor) -> Tensor:
    """Scale fp32 numbers by `SMALL`, which changes no bit of a mantissa."""
    return tensor * SMALL if tensor.dtype is torch.float32 else tensor


def one_element(tensor: Tensor, draw: Random) -> None:
    """Give one element, at a random place, nearly the tensor's largest or smallest value, whichever is farther away.

    Zeros stay where there are others, as in triangular matrices, symmetric matrices stay symmetric, and numbers of few
    kinds, as labels are, become another of these. Nothing else becomes equal to another number by it.
    """
    flat = tensor.view(-1)
    index = draw.randrange(tensor.numel())
    if not bool(flat[index]) and len(places := flat.nonzero()):
        index = int(places[draw.randrange(len(places))])
    low, high = flat.min(), flat.max()
    extreme = low if flat[index] - low > high - flat[index] else high
    value = extreme if is_few(flat) else extreme + _SHORT * (flat[index] - extreme)
    if is_symmetric(tensor):
        row, column = divmod(index % tensor.shape[-1] ** 2, tensor.shape[-1])
        tensor.view(-1, *tensor.shape[-2:])[index // tensor.shape[-1] ** 2, column, row] = value
    in_order = is_in_order(tensor)
    flat[index] = value
    if in_order:
        flat.copy_(flat.sort().values)


def one_row(tensor: Tensor, draw: Random) -> None:
    """Reverse one row (along the last dimension), at a random place; of a single row, move it by one.

    Zeros stay where they are. Symmetric matrices and a single row in order are left alone.
    """
    rows = _rows(tensor)
    if is_symmetric(tensor) or is_in_order(tensor):
        return
    row = rows[draw.randrange(len(rows))]
    there = row != 0
    values = row[there]
    row[there] = values.flip(0) if len(rows) > 1 else values.roll(1)


def is_few(tensor: Tensor) -> bool:
    """Whether there are only a few different numbers, two at least, as far as the first ones tell."""
    different = tensor.reshape(-1)[:_LOOKED_AT].unique()  # type: ignore[no-untyped-call]
    return 1 < len(different) <= _FEW < tensor.numel()


def is_symmetric(tensor: Tensor) -> bool:
    """Whether matrices are symmetric."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] > 1
    return square and bool((tensor == tensor.mT).all())


def is_in_order(tensor: Tensor) -> bool:
    """Whether a single row of numbers ascends, as edges and grids do, and not by chance."""
    flat = tensor.reshape(-1)
    if tensor.squeeze().dim() != 1 or len(flat) < _ROW or not bool(flat[0] < flat[-1]):
        return False
    return all(bool((part.diff() >= 0).all()) for part in (flat[:_LOOKED_AT], flat))  # the first ones mostly tell


def structured(tensor: Tensor, draw: Random) -> None:
    """Sort every second row and move the rest, leaving zeros where they are; symmetric matrices stay as they are."""
    if is_symmetric(tensor):
        return
    if bool((tensor == 0).any()):
        return
    rows = _rows(tensor)
    rows[::2] = rows[::2].sort(dim=1).values
    rows[1::2] = rows[1::2].roll(draw.randrange(rows.shape[1]), dims=1)


def _rows(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as rows along its last dimension; as a single row where those have one element."""
    return tensor.view(-1, tensor.shape[-1]) if tensor.dim() > 1 and tensor.shape[-1] > 1 else tensor.view(1, -1)


def amplified(tensor: Tensor, draw: Random) -> None:
    """Amplify half of the rows sixteenfold, if the values look unbounded (below -1.5 and above 1.5).

    They lie beside each other, at a random place, so that no part of the rows has the mean of all of them; not at
    either end, if there are enough, where somebody may look whether numbers are tame. Symmetric matrices and grids stay
    as they are.
    """
    if is_symmetric(tensor) or is_in_order(tensor):
        return
    if not (float(tensor.min()) < -_WIDE and float(tensor.max()) > _WIDE):
        return
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.reshape(-1, 1)
    half = -(-len(rows) // 2)
    last = len(rows) - half
    start = draw.randrange(1, last) if last > 1 else draw.randrange(last + 1)
    rows[start : start + half] *= AMPLIFICATION


def share_changed(left: Sequence[Tensor], right: Sequence[Tensor], inputs: Sequence[Tensor]) -> float | None:
    """Return the share of elements of floating-point outputs that differ; None when there are none.

    An output that is an input, bit by bit, does not count: nobody has to make it. Nor does a zero that stays one: it
    may be of memory that was cleared, for a kernel that scatters a few numbers.
    """
    total = made = differing = 0
    for first, second in zip(left, right, strict=False):
        passed_through = any(integrity.same_bits(first, given) for given in inputs)
        if first.is_floating_point() and not passed_through:
            total += first.numel()
            made += int(((first != 0) | (second != 0)).sum())
            differing += int((first != second).sum())
    return differing / (made or total) if total else None
