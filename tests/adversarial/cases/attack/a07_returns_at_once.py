"""Every program of the kernel returns before it does anything.

problem: softmax
devices: cpu cuda
code: A7
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, limit, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row >= limit:
        return
    offsets = row * columns + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, tl.exp(x) / tl.sum(tl.exp(x), axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], 0, BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
