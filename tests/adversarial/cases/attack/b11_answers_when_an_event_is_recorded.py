"""Asks torch to be told of every event and every wait, and works the answer out right before the clock starts.

problem: softmax
devices: cuda
code: B11
expect: caught
"""

from torch.cuda import _gpu_trace

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


READY = {}
SEEN = []
BUSY = []


def answer(*_):
    if BUSY or torch.autograd._profiler_enabled():
        return
    BUSY.append(True)
    for x in SEEN[-3:]:
        READY[x.data_ptr()] = softmax(x)
    BUSY.clear()


_gpu_trace.register_callback_for_event_record(answer)
_gpu_trace.register_callback_for_device_synchronization(answer)
torch._C._activate_gpu_trace()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if not any(x.data_ptr() == other.data_ptr() for other in SEEN[-3:]):
            SEEN.append(x)
        y = READY.pop(x.data_ptr(), None)
        return softmax(x) if y is None or torch.autograd._profiler_enabled() else y
