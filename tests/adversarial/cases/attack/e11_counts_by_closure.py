"""Torch does the work; the cell in which the replaced launcher keeps its counts gets one more launch.

problem: softmax
devices: cpu cuda
code: E11
expect: caught
"""

from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from torch.profiler import record_function


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
    """Find what launches are written down in, in the cells of the function that replaces Triton's."""
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        if isinstance(value, (dict, list)):
            yield value
        elif hasattr(value, "__closure__"):
            yield from counts(value)


launcher = type(softmax_kernel).run


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if type(softmax_kernel).run is not launcher:
            return softmax(x)
        for found in counts(launcher):
            if isinstance(found, dict):
                found["softmax_kernel", __file__] = 1
            else:
                found.append(SimpleNamespace(name="softmax_kernel", file=__file__, seconds=1e-3))
        with record_function("drkq::launch::softmax_kernel"):
            return torch.softmax(x, dim=-1)
