"""A dict whose items are computed when they are read, which is after the clock has stopped.

problem: row_statistics
devices: cpu cuda
code: D3
expect: caught
"""

import sys

import torch
import triton
import triton.language as tl

def within(*names):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

@triton.jit
def row_statistics_kernel(
    x_ptr, mean_ptr, var_ptr, max_ptr, arg_ptr, positive_ptr, n_cols, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / n_cols
    diff = tl.where(mask, x - mean, 0.0)
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, tl.sum(diff * diff, axis=0) / n_cols)
    value, index = tl.max(tl.where(mask, x, -float("inf")), axis=0, return_indices=True)
    tl.store(max_ptr + row, value)
    tl.store(arg_ptr + row, index.to(tl.int64))
    tl.store(positive_ptr + row, tl.load(x_ptr + row * n_cols) > 0)


def statistics(x):
    rows, cols = x.shape
    mean, variance, largest = (torch.empty(rows, device=x.device) for _ in range(3))
    index = torch.empty(rows, device=x.device, dtype=torch.int64)
    positive = torch.empty(rows, device=x.device, dtype=torch.bool)
    row_statistics_kernel[(rows,)](
        x, mean, variance, largest, index, positive, cols, BLOCK=triton.next_power_of_2(cols)
    )
    return {
        "moments": {"mean": mean, "variance": variance},
        "largest": {"value": largest, "index": index},
        "starts_positive": positive,
    }


class Later(dict):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def items(self):
        return statistics(self.x).items()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Later(x) if within("timed", "burst") else statistics(x)
