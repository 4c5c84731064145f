"""Replies to a timed call before it does the work, and swallows the harness's own reply; calls in a row get no work at all.

problem: softmax
devices: cpu cuda
code: E3
expect: caught
"""

import gc
import random
import sys

import torch
import triton
import triton.language as tl

from workers.isolation.wire import Channel

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

honest = Channel.send
SENT = []


def send(self, *args, **kwargs):
    if SENT:
        SENT.clear()
        return
    honest(self, *args, **kwargs)


Channel.send = send


def harness():
    return next(o for o in gc.get_objects() if type(o).__name__ == "Harness")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if within("burst"):
            return self.y
        if within("timed"):
            honest(harness().channel, {"ok": True, "ms": 0.01 * random.uniform(1.0, 1.1)})
            SENT.append(True)
        self.y = softmax(x)
        return self.y
