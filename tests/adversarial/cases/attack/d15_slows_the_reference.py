"""Threads burn the machine's cores whenever the candidate is not being called, which is when the reference is timed.

problem: softmax
devices: cpu
code: D15
expect: caught
"""

import os
import threading
import time

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

CALLED = threading.Event()
LAST = [0.0]


def burn():
    a = torch.randn(192, 192)
    while True:
        if time.monotonic() - LAST[0] < 0.004 or not LAST[0]:
            time.sleep(0.002)
        else:
            torch.mm(a, a)


for _ in range(2 * (os.cpu_count() or 2)):
    threading.Thread(target=burn, daemon=True).start()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        LAST[0] = time.monotonic() + 10
        y = softmax(x)
        LAST[0] = time.monotonic()
        return y
