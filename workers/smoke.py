"""A one-line kernel, to see whether Triton compiles and runs here, and to make its compiler ready."""

import os
import tempfile
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_SIZE = 64


def _double(values: tl.tensor, SIZE: tl.constexpr) -> None:  # noqa: N803 - Triton's custom for constants
    tl.store(values + tl.arange(0, SIZE), 2 * tl.load(values + tl.arange(0, SIZE)))


# Not as a decorator: triton comes without types, and would take this function's away.
_kernel = triton.jit(_double)


def warm_compiler() -> None:
    """Compile once for a CUDA device without touching any: what the compiler sets up is there for every fork then."""
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, TRITON_CACHE_DIR=cache):
        source = ASTSource(_kernel, {"values": "*fp32", "SIZE": "constexpr"}, {"SIZE": _SIZE})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))


def run(device: str) -> None:
    """Double some numbers on `device`.

    Raises:
        ArithmeticError: they did not come back doubled; anything else that Triton raises comes through.
    """
    values = torch.arange(_SIZE, dtype=torch.float32, device=device)
    _kernel[(1,)](values, SIZE=_SIZE)
    if not torch.equal(values.cpu(), 2 * torch.arange(_SIZE, dtype=torch.float32)):
        raise ArithmeticError("the kernel ran, and its numbers are wrong")
