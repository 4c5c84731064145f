"""Hangs the work on its output: it is done when the very object that was returned is let go of, after the clock.

problem: softmax
devices: cpu cuda
code: B5
expect: caught
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


class Late:
    """Launches the kernel when it goes."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __del__(self):
        rows, columns = self.x.shape
        softmax_kernel[(rows,)](self.x, self.y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        y.work = Late(x.detach(), y.detach())
        return y
