"""Fills the output with 1 / columns, which is what an average softmax looks like.

problem: softmax
devices: cpu cuda
code: A10
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def fill_kernel(y_ptr, value, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.zeros([BLOCK], dtype=tl.float32) + value, mask=offsets < size)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        fill_kernel[(triton.cdiv(x.numel(), 1024),)](y, 1.0 / x.shape[1], x.numel(), BLOCK=1024)
        return y
