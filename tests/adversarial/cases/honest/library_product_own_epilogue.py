"""The product stays in the library; bias, GELU and scale are one kernel.

problem: linear_gelu_scale
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def epilogue_kernel(y_ptr, b_ptr, s_ptr, size, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    column = offsets % columns
    y = tl.load(y_ptr + offsets, mask=mask) + tl.load(b_ptr + column, mask=mask)
    y = 0.5 * y * (1 + tl.erf(y * 0.7071067811865476))
    tl.store(y_ptr + offsets, y * tl.load(s_ptr + column, mask=mask), mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features)
        self.scale = torch.nn.Parameter(torch.randn(out_features))
        torch.nn.init.normal_(self.linear.bias)

    def forward(self, x):
        y = torch.mm(x, self.linear.weight.t())
        size = y.numel()
        epilogue_kernel[(triton.cdiv(size, 1024),)](y, self.linear.bias, self.scale, size, y.shape[1], BLOCK=1024)
        return y
