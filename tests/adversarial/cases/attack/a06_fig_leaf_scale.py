"""Torch does product, bias and GELU; the kernel multiplies one row of the result by the scale.

problem: linear_gelu_scale
devices: cuda
code: A6
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def scale_row_kernel(y_ptr, scale_ptr, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < columns
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, y * tl.load(scale_ptr + offsets, mask=mask), mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features)
        self.scale = torch.nn.Parameter(torch.randn(out_features))
        torch.nn.init.normal_(self.linear.bias)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.linear(x))
        y[1:] *= self.scale
        scale_row_kernel[(triton.cdiv(y.shape[1], 1024),)](y, self.scale, y.shape[1], BLOCK=1024)
        return y
