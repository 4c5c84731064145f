"""Softmax of rows that fit in no register file: one pass keeps a running maximum and sum, a second one writes."""

import torch
import triton
import triton.language as tl
from torch import nn

LOWEST = tl.constexpr(-3.4e38)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    # A row may start past 2**31 elements.
    start = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    # One maximum and one sum a lane; the lanes meet only once, at the end.
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for column in range(0, columns, BLOCK):
        at = column + offsets
        x = tl.load(x_ptr + start + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, x)
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
    highest = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(top - highest), axis=0)
    for column in range(0, columns, BLOCK):
        at = column + offsets
        x = tl.load(x_ptr + start + at, mask=at < columns, other=0.0).to(tl.float32)
        tl.store(y_ptr + start + at, tl.exp(x - highest) * scale, mask=at < columns)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty_like(x)
        softmax_kernel[(rows,)](x, y, columns, BLOCK=8192, num_warps=8)
        return y
