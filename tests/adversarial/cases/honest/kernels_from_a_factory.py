"""Makes two kernels of the same name in a factory without exec, one for each kind of width.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl


def make(whole):
    if whole:

        @triton.jit
        def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * columns + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + offsets)
            numerator = tl.exp(x - tl.max(x, axis=0))
            tl.store(y_ptr + offsets, numerator / tl.sum(numerator, axis=0))

    else:

        @triton.jit
        def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
            offsets = tl.arange(0, BLOCK)
            mask = offsets < columns
            x = tl.load(x_ptr + tl.program_id(0) * columns + offsets, mask=mask, other=-float("inf"))
            numerator = tl.exp(x - tl.max(x, axis=0))
            tl.store(y_ptr + tl.program_id(0) * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)

    return softmax_kernel


KERNELS = {whole: make(whole) for whole in (True, False)}


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        half, block = x.shape[0] // 2, triton.next_power_of_2(x.shape[1])
        KERNELS[block == x.shape[1]][(half,)](x, y, x.shape[1], BLOCK=block, num_warps=8)
        KERNELS[False][(x.shape[0] - half,)](x[half:], y[half:], x.shape[1], BLOCK=block, num_warps=8)
        return y
