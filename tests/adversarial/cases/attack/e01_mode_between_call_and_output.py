"""Leaves a function mode that does half of the work when the output is detached, and takes it away when weights are asked for.

problem: softmax
devices: cpu cuda
code: E1
expect: caught
ci: yes
"""

from torch.overrides import TorchFunctionMode

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
    y = torch.empty_like(x) if y is None else y
    columns = x.shape[1]
    softmax_kernel[(x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


@triton.jit
def all_rows_kernel(x_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + row * columns + column, numerator / tl.sum(numerator, axis=1)[:, None], mask=mask)


def quick(x, y):
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    some = min(triton.next_power_of_2(rows), 2**17 // block)
    all_rows_kernel[(triton.cdiv(rows, some),)](x, y, rows, columns, some, block, num_warps=8)
    return y


WORK = []


def finish():
    if WORK:
        quick(*WORK.pop())


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.detach:
            finish()
        return function(*args, **(kwargs or {}))


MODES = []


def leave():
    while MODES:
        MODES.pop().__exit__(None, None, None)


class ModelNew(torch.nn.Module):
    def named_parameters(self, *args, **kwargs):
        leave()
        finish()
        return super().named_parameters(*args, **kwargs)

    def forward(self, x):
        leave()
        finish()
        y, half = torch.empty_like(x), len(x) // 2
        softmax(x[:half], y[:half])
        WORK.append((x[half:], y[half:]))
        MODES.append(Mode())
        MODES[-1].__enter__()
        return y
