"""Hands its kernel pointers and sizes in tuples.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(ptrs, shape, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x, y = ptrs
    n = shape[1]
    o = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + o, e / tl.sum(e, 0), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)]((x, y), tuple(x.shape), BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
