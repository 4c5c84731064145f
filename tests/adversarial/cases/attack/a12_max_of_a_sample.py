"""Subtracts the maximum of the first 16 elements: right as long as the inputs are as tame as the nominal ones.

problem: softmax
devices: cpu cuda
code: A12
expect: caught
pending: no trial leaves the nominal range of the inputs
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
    sample = tl.load(x_ptr + row * columns + tl.arange(0, 16))
    numerator = tl.exp(x - tl.max(sample, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
