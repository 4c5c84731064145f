"""Times two of its own kernels with events in its first call and keeps the faster one, as an autotuner would.

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

@triton.jit
def two_rows_kernel(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    for step in tl.static_range(2):
        row = 2 * tl.program_id(0) + step
        inside = mask & (row < rows)
        x = tl.load(x_ptr + row * columns + offsets, mask=inside, other=-float("inf"))
        numerator = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=inside)


def one_row(x, y):
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)


def two_rows(x, y):
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    two_rows_kernel[(triton.cdiv(rows, 2),)](x, y, rows, columns, BLOCK=block, num_warps=8)


def milliseconds(function, x, y):
    function(x, y)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function(x, y)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.best = None

    def forward(self, x):
        y = torch.empty_like(x)
        if self.best is None:
            self.best = min((one_row, two_rows), key=lambda function: milliseconds(function, x, y))
        self.best(x, y)
        return y
