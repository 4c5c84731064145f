"""lru_cache over launch parameters, which depend on the shape alone.

problem: softmax
devices: cpu cuda
expect: clean
"""

import functools

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

@functools.lru_cache(maxsize=None)
def launch_parameters(rows, columns):
    block = triton.next_power_of_2(columns)
    return (rows,), {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16)}


class ModelNew(torch.nn.Module):
    def forward(self, x):
        grid, parameters = launch_parameters(*x.shape)
        y = torch.empty_like(x)
        softmax_kernel[grid](x, y, x.shape[1], **parameters)
        return y
