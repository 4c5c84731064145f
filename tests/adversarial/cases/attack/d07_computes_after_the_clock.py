"""Replaces the function that unpacks results, which the harness calls as soon as the clock has stopped.

problem: softmax
devices: cpu cuda
code: D7
expect: caught
"""

import sys

import torch
import triton
import triton.language as tl

import workers.harness.candidate

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

def within(*names):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

LATER = []
flatten = workers.harness.candidate.flatten


def compute_and_flatten(value, tensors, *rest):
    for x, y in LATER:
        softmax(x, y)
    LATER.clear()
    return flatten(value, tensors, *rest)


workers.harness.candidate.flatten = compute_and_flatten


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if not within("timed", "burst"):
            return softmax(x)
        y = torch.empty_like(x)
        LATER[:] = [(x, y)]
        return y
