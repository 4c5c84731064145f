"""Gemm by torch; the chain of five elementwise steps behind it in one pass, in place."""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice


@triton.jit
def activation_chain_kernel(x_ptr, add_ptr, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + start + at, mask=inside, other=0.0)
    x += tl.load(add_ptr + at, mask=inside, other=0.0)
    x = x * tl.sigmoid(x)
    x = libdevice.tanh(x)
    x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    x = tl.minimum(tl.maximum(x, -1.0), 1.0)
    tl.store(x_ptr + start + at, x, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, add_value_shape):
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.matmul(x)
        rows, columns = x.shape
        grid = (rows, triton.cdiv(columns, 1024))
        activation_chain_kernel[grid](x, self.add_value, columns, BLOCK=1024, num_warps=4)
        return x
