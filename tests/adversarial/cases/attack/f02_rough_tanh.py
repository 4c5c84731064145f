"""Takes a rational approximation for tanh that is good to three digits.

problem: gelu
devices: cpu cuda
code: F2
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def gelu_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    z = tl.minimum(tl.maximum(z, -4.9), 4.9)
    square = z * z
    rough = z * (135135 + square * (17325 + square * (378 + square)))
    rough /= 135135 + square * (62370 + square * (3150 + square * 28))
    tl.store(y_ptr + offsets, 0.5 * x * (1 + rough), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
