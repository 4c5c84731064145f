"""Arithmetic: the reference run as a less precise class of products would make it, for errors and for times.

For errors the operands of every product are rounded to what the class keeps of them, and sums stay as they are: the
same on every device, and no library chooses another way for small sizes. For times torch is asked as a user would ask.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from drkernel_q.correctness import Precision

Rounding = Callable[[Tensor], Tensor]
#: Operators of torch that make products, and which of their arguments are operands (the others are only added).
_PRODUCTS: Mapping[str, tuple[int, ...]] = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::mv": (0, 1),
    "aten::addmv": (1, 2),
    "aten::dot": (0, 1),
    "aten::vdot": (0, 1),
    "aten::_trilinear": (0, 1, 2),
    "aten::convolution": (0, 1),
}
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
#: Bits of an fp32 mantissa that TF32 drops.
_DROPPED = 0x1FFF
_AUTOCAST = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


def _nearest(tensor: Tensor) -> Tensor:
    bits = tensor.contiguous().view(torch.int32)
    return _finite(bits + (_DROPPED >> 1) + ((bits >> 13) & 1), tensor)


def truncated(tensor: Tensor) -> Tensor:
    """Drop the bits that TF32 does not have, as Triton does where nobody has rounded before; biased towards zero."""
    return _finite(tensor.contiguous().view(torch.int32), tensor)


def _middle(tensor: Tensor) -> Tensor:
    """Truncate, and add what that takes away on average: its noise without its bias."""
    middle = (truncated(tensor).view(torch.int32) | (_DROPPED + 1) >> 1).view(torch.float32)
    return torch.where(tensor.isfinite() & (tensor != 0), middle, tensor)


def _finite(bits: Tensor, tensor: Tensor) -> Tensor:
    return torch.where(tensor.isfinite(), (bits & ~_DROPPED).view(torch.float32), tensor)


#: How a class may round operands; the first is what it is measured by, and all but `truncated` are without bias.
ROUNDINGS: Mapping[Precision, tuple[Rounding, ...]] = {
    Precision.TF32: (_nearest, _middle, truncated),
    Precision.FP16: (lambda tensor: tensor.half().float(),),
    Precision.BF16: (lambda tensor: tensor.bfloat16().float(),),
}


class _Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, rounding: Rounding) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding = rounding

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = _PRODUCTS.get(func._schema.name, ())
        args = [self._round(arg) if place in places else arg for place, arg in enumerate(args)]
        return func(*args, **(kwargs or {}))

    def _round(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.rounding(value) if value.dtype is torch.float32 else value
        return [self._round(item) for item in value]


class _Apart(TorchFunctionMode):
    """Takes attention and recurrent layers apart into the products that a kernel makes.

    Torch would scale both operands of attention's first product before, and hide the other products in one operator.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _RECURRENT:
            with _without_libraries():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_libraries() -> Iterator[None]:
    libraries: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.mkldnn)
    before = [library.enabled for library in libraries]
    try:
        for library in libraries:
            library.enabled = False
        yield
    finally:
        for library, enabled in zip(libraries, before, strict=True):
            library.enabled = enabled


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Do what `scaled_dot_product_attention` does, a head at a time for the sake of memory.

    Raises:
        NotImplementedError: with dropout.
    """
    if dropout_p:
        raise NotImplementedError("attention with dropout is not deterministic")
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    heads = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, device=query.device).masked_fill(~attn_mask, -torch.inf)
    parts = [each.expand(*heads, *each.shape[-2:]).reshape(-1, *each.shape[-2:]) for each in (query, key, value)]
    masks = None if attn_mask is None else attn_mask.expand(*heads, *attn_mask.shape[-2:])
    outputs = []
    for number, (q, k, v) in enumerate(zip(*parts, strict=True)):
        scores = (q @ k.mT) * scale
        if masks is not None:
            scores += masks[np.unravel_index(number, heads)] if heads else masks
        outputs.append(scores.softmax(-1) @ v)
    return torch.stack(outputs).reshape(*heads, query.shape[-2], value.shape[-1])


@contextmanager
def rounded(rounding: Rounding) -> Iterator[None]:
    """Round the fp32 operands of every product while the context lasts."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would hide a whole layer in one operator
    try:
        with _Rounded(rounding), _Apart():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def products_in(precision: Precision, device: str) -> Iterator[None]:
    """Let torch make products in `precision` while the context lasts: by its flags for TF32, else by autocast."""
    if precision in _AUTOCAST:
        with torch.autocast(device, dtype=_AUTOCAST[precision]):
            yield
    elif precision is Precision.TF32:
        flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
        before = [owner.allow_tf32 for owner in flags]
        try:
            for owner in flags:
                owner.allow_tf32 = True
            yield
        finally:
            for owner, value in zip(flags, before, strict=True):
                owner.allow_tf32 = value
    else:
        yield


class _Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value: float = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" in func._schema.name:  # nobody has written to it yet
            return result
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.is_floating_point() and value.itemsize > 1 and value.numel():
                largest = float(value.abs().max())
                self.value = max(self.value, largest) if math.isfinite(largest) else math.inf
        return result


def largest_value(call: Callable[..., Any], *args: Any) -> float:
    """Return the largest magnitude of any result of an operator while `call` runs; infinite where it is not finite."""
    with _Peak() as peak:
        call(*args)
    return float(peak.value)
