"""A running sum by blocks in a while loop, with the sum so far carried along.

problem: cumulative_sum
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def plus(left, right):
    return left + right


@triton.jit
def scan_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    start = 0
    while start < columns:
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
        tl.store(y_ptr + row * columns + offsets, tl.associative_scan(x, 0, plus) + carry, mask=mask)
        carry += tl.sum(x, axis=0)
        start += BLOCK


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scan_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024, num_warps=4)
        return y
