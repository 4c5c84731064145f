"""Registers the kernel as an operator of torch, as libraries do; its launches then happen inside of an operator.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)

@torch.library.custom_op("drkq_case::softmax", mutates_args=())
def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


@softmax.register_fake
def _(x):
    return torch.empty_like(x)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x)
