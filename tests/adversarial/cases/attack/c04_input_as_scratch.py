"""Keeps the exponentials in the caller's input, and leaves them there.

problem: softmax
devices: cpu cuda
code: C4
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def exponential_kernel(x_ptr, total_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(x_ptr + row * columns + offsets, numerator, mask=mask)
    tl.store(total_ptr + row, tl.sum(numerator, axis=0))


@triton.jit
def divide_kernel(x_ptr, total_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask)
    tl.store(y_ptr + row * columns + offsets, x / tl.load(total_ptr + row), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        total = torch.empty(x.shape[0], device=x.device)
        block = triton.next_power_of_2(x.shape[1])
        exponential_kernel[(x.shape[0],)](x, total, x.shape[1], BLOCK=block)
        divide_kernel[(x.shape[0],)](x, total, y, x.shape[1], BLOCK=block)
        return y
