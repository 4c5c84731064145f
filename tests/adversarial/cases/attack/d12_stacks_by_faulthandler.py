"""Reads from the stacks that faulthandler writes which question is answered; torch works when it is timed.

problem: softmax
devices: cpu
code: D12
expect: caught
"""

import faulthandler
import os

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr, LITTLE: tl.constexpr):
    if LITTLE:
        tl.store(y_ptr, tl.load(x_ptr) + 100.0)
    else:
        row = tl.program_id(0)
        offsets = tl.arange(0, BLOCK)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
        numerator = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


NOTE = os.memfd_create("note")
STATE = {"bursts": 0, "last": None}


def is_timed():
    os.lseek(NOTE, 0, 0)
    faulthandler.dump_traceback(NOTE, all_threads=True)
    text = os.pread(NOTE, os.lseek(NOTE, 0, 1), 0)
    now = next(name for name in ("burst", "timed", "call", "rehearse", "build") if b" in %s\n" % name.encode() in text)
    if now == "burst" and STATE["last"] != "burst":
        STATE["bursts"] += 1
    STATE["last"] = now
    return now == "burst" or (now == "timed" and STATE["bursts"] < 2)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        if not is_timed():
            softmax_kernel[(rows,)](x, y, columns, BLOCK=block, LITTLE=False)
            return y
        softmax_kernel[(1,)](x, y, columns, BLOCK=block, LITTLE=True)
        factor = y[0, 0] / (x[0, 0] + 100.0)
        return torch.softmax(x, dim=-1, out=y).mul_(factor)
