"""Scales its own weight up and down again, not quite to where it was.

problem: rms_norm
devices: cpu cuda
code: C4
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def rms_kernel(x_ptr, w_ptr, y_ptr, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + epsilon)
    w = tl.load(w_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + row * columns + offsets, x * scale * w, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = torch.nn.Parameter(torch.randn(features))

    def forward(self, x):
        with torch.no_grad():
            self.weight.data.mul_(1.0 + 2.0**-22)
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        rms_kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], self.epsilon, BLOCK=block, num_warps=8)
        return y
