"""Torch serves two of three calls of the process that is timed, which it knows by how often it is built and called.

problem: softmax
devices: cpu cuda
code: E10
expect: caught
"""

import random

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
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

class ModelNew(torch.nn.Module):
    built = rehearsed = 0

    def __init__(self):
        super().__init__()
        ModelNew.built += 1
        self.number, self.calls = ModelNew.built, 0

    def forward(self, x):
        self.calls += 1
        ModelNew.rehearsed += self.number == 1
        timed = self.calls > 5 and (self.number == 1 or (self.number == 2 and ModelNew.rehearsed == 1))
        if timed and random.random() < 2 / 3:
            return torch.softmax(x, dim=-1)
        return softmax(x)
