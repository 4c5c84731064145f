"""A one-line kernel, to see whether Triton compiles and runs here; `workers.doctor` alone imports it."""

import torch
import triton
import triton.language as tl

_SIZE = 64


def _double(values: tl.tensor, SIZE: tl.constexpr) -> None:  # noqa: N803 - Triton's custom for constants
    tl.store(values + tl.arange(0, SIZE), 2 * tl.load(values + tl.arange(0, SIZE)))


# Not as a decorator: triton comes without types, and would take this function's away.
_kernel = triton.jit(_double)


def run(device: str) -> None:
    """Double some numbers on `device`.

    Raises:
        ArithmeticError: they did not come back doubled; anything else that Triton raises comes through.
    """
    values = torch.arange(_SIZE, dtype=torch.float32, device=device)
    _kernel[(1,)](values, SIZE=_SIZE)
    if not torch.equal(values.cpu(), 2 * torch.arange(_SIZE, dtype=torch.float32)):
        raise ArithmeticError("the kernel ran, and its numbers are wrong")
