"""Writes a later start into the local variables of the frame that holds the clock.

problem: softmax
devices: cpu cuda
code: D12
expect: caught
"""

import ctypes
import sys
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

def later(value):
    now = time.perf_counter()
    if isinstance(value, float) and 0 < now - value < 5:
        return now - (now - value) / 4
    if type(value) is torch._C._CudaEventBase and not value.query():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    return None


def move_start():
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return
        for name, value in list(frame.f_locals.items()):
            moved = later(value)
            if moved is not None:
                frame.f_locals[name] = moved
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
                return
        frame = frame.f_back


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = softmax(x)
        move_start()
        return y
