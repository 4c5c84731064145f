"""Finds the stop-watch below on the stack, and lets it say an eighth less, which no second clock can tell.

problem: softmax
devices: cpu cuda
code: D10
expect: caught
"""

import time
import traceback

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


def stopwatch():
    frame = next(traceback.walk_stack(None))[0]
    while frame is not None:
        found = frame.f_locals.get("self")
        if type(found).__name__ == "Stopwatch":
            return found
        frame = frame.f_back
    return None


def shave(found):
    if "_elapsed" in vars(found):
        elapsed = torch._C._CudaEventBase.elapsed_time
        found._elapsed = lambda start, end: elapsed(start, end) * 0.88
    else:
        begun = time.perf_counter()
        found._clock = lambda: begun + (time.perf_counter() - begun) * 0.88


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.found = False

    def forward(self, x):
        if not self.found and (found := stopwatch()) is not None:
            shave(found)
            self.found = True
        return softmax(x) if self.found else torch.softmax(x, dim=-1)
