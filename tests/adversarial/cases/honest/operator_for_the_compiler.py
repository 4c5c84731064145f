"""Registers its kernel by torch.library.triton_op, so that compilers can look through it.

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

@torch.library.triton_op("drkq_case::row_softmax", mutates_args=())
def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    torch.library.wrap_triton(softmax_kernel)[(rows,)](x, y, columns, BLOCK=block, num_warps=8)
    return y


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x)
