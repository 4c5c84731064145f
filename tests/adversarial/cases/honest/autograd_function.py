"""Wrapped into an autograd function with a backward pass of its own.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

@triton.jit
def backward_kernel(y_ptr, g_ptr, d_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    y = tl.load(y_ptr + row * columns + offsets, mask=mask, other=0.0)
    g = tl.load(g_ptr + row * columns + offsets, mask=mask, other=0.0)
    tl.store(d_ptr + row * columns + offsets, y * (g - tl.sum(y * g, axis=0)), mask=mask)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = softmax(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        d = torch.empty_like(y)
        block = triton.next_power_of_2(y.shape[1])
        backward_kernel[(y.shape[0],)](y, g.contiguous(), d, y.shape[1], BLOCK=block, num_warps=8)
        return d


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Softmax.apply(x)
