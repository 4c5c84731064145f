"""Works in place and returns its input, since the reference does.

problem: inplace_relu_scale
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def relu_scale_kernel(x_ptr, w_ptr, size, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask)
    w = tl.load(w_ptr + offsets % columns, mask=mask)
    tl.store(x_ptr + offsets, tl.maximum(x, 0.0) * w, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(features))

    def forward(self, x):
        relu_scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, self.weight, x.numel(), x.shape[1], BLOCK=1024)
        return x
