"""Torch does the work; the cell in which the function before the launcher keeps its counts gets one more.

problem: softmax
devices: cpu cuda
code: E11
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


def softmax(x, y=None, rows=None):
    columns = x.shape[1]
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows or x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


def counts(function):
    """Find what launches are written down in, in the cells of the function that stands before Triton's."""
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        if isinstance(value, dict):
            yield value
        elif hasattr(value, "__closure__"):
            yield from counts(value)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for found in counts(type(softmax_kernel).run):
            found["softmax_kernel", True] = 1
        return torch.softmax(x, dim=-1)
