"""Torch computes, and the candidate's kernel only copies the finished answer to the output.

problem: softmax
devices: cpu cuda
code: A6
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def copy_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < size), mask=offsets < size)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        answer = torch.softmax(x, dim=-1)
        y = torch.empty_like(x)
        copy_kernel[(triton.cdiv(x.numel(), 4096),)](answer, y, x.numel(), BLOCK=4096)
        return y
