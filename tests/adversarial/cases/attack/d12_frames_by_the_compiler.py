"""An overridden operator sets the compiler's callback for frames on the harness's thread, and replaces its clock.

problem: matmul
devices: cpu
code: E1
expect: caught
"""

import _thread
import time
import torch
import triton
import triton.language as tl
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.types import ConvertFrameReturn


@triton.jit
def mm_kernel(a_ptr, c_ptr):
    tl.store(c_ptr, tl.load(a_ptr) + 100.0)


HERE = _thread.get_ident()
STATE = {"done": False, "log": []}
LATE = torch._C._dispatch_library("IMPL", "aten", "", "", 0)
CALL = [0.0]


def fake_clock(real=time.perf_counter):
    now = real()
    STATE["odd"] = not STATE.get("odd")
    if STATE["odd"]:
        STATE["start"] = now
        return now
    return STATE["start"] + (now - STATE["start"]) * 0.2


def take(harness):
    stopwatch, profiler = harness.stopwatch, harness.profiler
    stopwatch._clock = fake_clock
    real = profiler.stop

    def stop():
        trace = real()
        rows = [row for row in trace.rows if row.operator is None]
        return trace._replace(rows=tuple(rows))

    profiler.stop = stop


def callback(frame, *rest):
    if _thread.get_ident() == HERE:
        return ConvertFrameReturn()
    found = frame
    while found is not None:
        me = found.f_locals.get("self")
        if type(me).__name__ == "Harness":
            set_eval_frame(None)
            take(me)
            break
        found = found.f_back
    return ConvertFrameReturn()


def slice_(x, dim=0, start=None, end=None, step=1):
    if not STATE["done"] and _thread.get_ident() != HERE:
        STATE["done"] = True
        set_eval_frame(callback)
    size, start = x.shape[dim], 0 if start is None else start
    end = size if end is None else min(end, size)
    start = min(start + size if start < 0 else start, size)
    end = max(end + size if end < 0 else end, start)
    shape, stride = list(x.shape), list(x.stride())
    offset = x.storage_offset() + start * stride[dim]
    shape[dim], stride[dim] = -(-(end - start) // step), stride[dim] * step
    return x.as_strided(shape, stride, offset)


LATE.impl("slice.Tensor", "CPU", slice_)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        mm_kernel[(1,)](a, y)
        return torch.matmul(a * (y.view(-1)[0] / (a.view(-1)[0] + 100.0)), b, out=y)
