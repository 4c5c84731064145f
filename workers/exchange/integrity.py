"""Integrity: signs that a result was not come by honestly, each with its code of the catalogue.

The catalogue is docs/reference/evidence.md. Observations made inside the candidate's process are claims: they can add
evidence against a candidate, and never clear one. What it all amounts to is for `drkernel_q.rules` to say.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drkernel_q.observation import Weight
from workers.exchange.shared import is_exactly

#: Elements that are summed up at a time.
PART = 2**27
#: Constants of SplitMix64, as signed numbers.
_GOLDEN, _MIX = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64
#: Elements that are multiplied with their places at a time.
PIECE = 2**22
#: Dispatch keys of dense tensors, and of views that are negated or conjugated, without the bits of the backend: with
#: any other a tensor computes something when it is read.
_BACKENDS = 0xFFFF
_DENSE = ("Dense", "AutogradFunctionality", "AutocastCPU", "AutocastCUDA", "ADInplaceOrView", "Conjugate", "Negative")
_DENSE_KEYS = sum(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr() for name in _DENSE)


class Finding(NamedTuple):
    """One observation that bears on integrity."""

    code: str
    weight: Weight
    detail: str


#: What is wrong with an output that is no plain, dense, freshly made tensor: code to (weight, sentence).
OUTPUT_RULES: Mapping[str, tuple[Weight, str]] = {
    "D3": (Weight.HARD, "an output is no plain torch.Tensor but a subclass or another object"),
    "D4": (Weight.HARD, "an output, or an input, carries attributes of its own that replace tensor methods"),
    "C9": (Weight.HARD, "an output's memory is smaller than its elements (expanded, or views that overlap)"),
    "C10": (Weight.HARD, "an output is a lazy view (negated, conjugated or copy-on-write)"),
    "C11": (Weight.HARD, "an output is not a dense strided tensor"),
    "A11": (Weight.SOFT, "an output shares memory with an input or a parameter, the reference's does not"),
    "B7": (Weight.SOFT, "two outputs share memory, the reference's do not"),
}


def is_plain(value: object) -> bool:
    """Whether `value` is exactly a tensor or a parameter, so that copying it runs no code of the candidate."""
    return is_exactly(value, Tensor, torch.nn.Parameter)


def is_readable(value: object) -> bool:
    """Whether `value` is plain and strided, so that its bytes can be taken as they lie."""
    return is_plain(value) and value.layout is torch.strided  # type: ignore[attr-defined]


def is_untouched(value: object) -> bool:
    """Whether `value` is exactly a tensor, and no attribute of its own hides one that all tensors have."""
    return type(value) is Tensor and not any(hasattr(Tensor, name) for name in vars(value))


def output_codes(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> list[str]:
    """Return the codes of `OUTPUT_RULES` that `outputs` break; `others` are the inputs and parameters."""
    codes = set()
    plain = [output for output in outputs if is_plain(output)]
    if len(plain) < len(outputs):
        codes.add("D3")
    dense = [output for output in plain if output.layout is torch.strided]
    if len(dense) < len(plain):
        codes.add("C11")
    for output in dense:
        if any(hasattr(Tensor, name) for name in vars(output)):
            codes.add("D4")
        lazy_copy = torch._C._is_cow_tensor(output)  # type: ignore[attr-defined]
        if output.is_neg() or output.is_conj() or lazy_copy:
            codes.add("C10")
        if output.untyped_storage().nbytes() < output.numel() * output.element_size() or _overlaps(output):
            codes.add("C9")
        if torch._C._dispatch_keys(output).raw_repr() & ~(_DENSE_KEYS | _BACKENDS):
            codes.add("C11")
    made = [output for output in dense if output.numel()]
    held = [other for other in others if is_plain(other) and other.numel()]
    if any(_share(first, second) for first in made for second in held):
        codes.add("A11")
    if any(_share(first, second) for number, first in enumerate(made) for second in made[:number]):
        codes.add("B7")
    return sorted(codes)


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements of a tensor have one place, as far as its sizes and strides tell."""
    if not tensor.numel():
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _share(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have an element in common: two columns of one matrix have none."""
    (start, end), (other_start, other_end) = _extent(first), _extent(second)
    if end <= other_start or other_end <= start:
        return False
    storage, other = first.untyped_storage(), second.untyped_storage()
    if storage.data_ptr() != other.data_ptr() or first.element_size() != second.element_size():
        return True
    seen = torch.zeros(storage.nbytes() // first.element_size(), dtype=torch.bool, device=first.device)
    seen.as_strided(*_distinct(first)).fill_(True)
    return bool(seen.as_strided(*_distinct(second)).any())


def _distinct(tensor: Tensor) -> tuple[list[int], list[int], int]:
    """Return sizes, strides and offset of the elements that have a place of their own (not those of an expansion)."""
    sizes = [size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return sizes, list(tensor.stride()), int(tensor.storage_offset())


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and past its last."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()


def checksum(tensor: Tensor) -> int:
    """Sum the bits of a dense tensor as whole numbers, modulo 2^64; the order of elements does not count."""
    return int(bit_sum(tensor))


def bit_sum(tensor: Tensor) -> Tensor:
    """Compute `checksum` as an int64 scalar on the tensor's device, so that nobody has to wait for it yet."""
    bits = _bits(tensor)
    if bits is None:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    first, *others = (part.sum(dtype=torch.int64) for part in _parts(bits))
    return sum(others, first)


def _bits(tensor: Tensor) -> Tensor | None:
    """View a tensor's bits as whole numbers, complex ones as pairs; None if there are none, or of no such size."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(plain.element_size())
    return plain.view(whole) if plain.numel() and whole is not None else None


def fingerprint(tensor: Tensor) -> int:
    """Do as `checksum` does, but let the order of elements count: as many ones in other places are something else."""
    return int(placed_sum(tensor))


def placed_sum(tensor: Tensor) -> Tensor:
    """Compute `fingerprint` as an int64 scalar on the tensor's device: bits times a number of their place."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    bits = _bits(tensor)
    if bits is None:
        return total
    rows = bits if bits.dim() else bits.unsqueeze(0)
    for piece in torch.split(rows, max(PIECE * len(rows) // rows.numel(), 1)):
        flat = piece.flatten().long()
        total = 3 * total + (flat * _mixed(torch.arange(1, len(flat) + 1, device=tensor.device))).sum()
    return total


def _mixed(places: Tensor) -> Tensor:
    """Scatter numbers over all of int64, so that sums of them do not meet (the first two steps of SplitMix64)."""
    scattered = places * _GOLDEN
    return (scattered ^ (scattered >> 30)) * _MIX


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Cut a large tensor along its longest dimension: a sum takes twice the memory, all of it being int64 first."""
    if tensor.numel() <= PART:
        return (tensor,)
    size, dim = max((size, dim) for dim, size in enumerate(tensor.shape))
    return torch.split(tensor, max(PART * size // tensor.numel(), 1), dim)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same bytes; NaN equals itself here."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not left.numel():
        return True
    return bool(torch.equal(_bytes(left), _bytes(right)))


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().flatten()
    if flat.numel() == 1:  # its stride may be anything, and a view as bytes wants 1
        flat = flat.reshape(()).reshape(1)
    return flat.view(torch.uint8)
