"""Leaves garbage that replaces a method of the harness when it is collected, whoever happens to collect it.

problem: softmax
devices: cpu cuda
code: E3
expect: caught
"""

import gc

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


launcher = next(kind for kind in object.__subclasses__() if kind.__name__ == "Launcher")
take = launcher.take


def take_once(self):
    launcher.take = take
    return [("softmax_kernel", True, 1)]


class Garbage:
    def __init__(self):
        self.itself = self

    def __del__(self):
        launcher.take = take_once


class ModelNew(torch.nn.Module):
    def forward(self, x):
        gc.set_threshold(20)
        y = torch.softmax(x, dim=-1)
        Garbage()
        return y
