"""Torch computes, the kernel copies; a range named like its launch stands around both, the launch's own within.

problem: softmax
devices: cpu
code: E12
expect: caught
pending: on the cpu device a range of the profiler stands for a launch, and anybody can open one
"""

import torch
import triton
import triton.language as tl
from torch.profiler import record_function


@triton.jit
def copy_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < size), mask=offsets < size)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        with record_function("drkq::launch::copy_kernel"):
            for _ in range(4):
                answer = torch.softmax(x, dim=-1)
            copy_kernel[(triton.cdiv(x.numel(), 8192),)](answer, y, x.numel(), BLOCK=8192)
        return y
