"""A thread watches the shared memory that inputs come through and has the answer ready before the clock starts.

problem: softmax
devices: cpu cuda
code: B11
expect: caught
"""

import gc
import sys
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

def within(*names):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

READY = []


def harness():
    return next((o for o in gc.get_objects() if type(o).__name__ == "Harness"), None)


def watch():
    served = None
    while True:
        time.sleep(0.0002)
        found = harness() if served is None else served
        if found is None or not getattr(found, "source", None) or not getattr(found, "specs", None):
            continue
        served = found
        view = found.source.view(found.specs[0])
        mark = (float(view[0, 0]), float(view[-1, -1]))
        if not READY or READY[-1][0] != mark:
            x = view.clone().to("cuda")
            READY.append((mark, x, torch.softmax(x, dim=-1)))
            del READY[:-2]


threading.Thread(target=watch, daemon=True).start()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if within("timed", "burst"):
            for _, seen, y in reversed(READY):
                if torch.equal(seen, x):
                    return y
        return softmax(x)
