"""Overrides the operators by which torch's profiler begins and ends a range; torch works after its end.

problem: matmul
devices: cpu
code: E1
expect: caught
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mm_kernel(a_ptr, c_ptr):
    tl.store(c_ptr, tl.load(a_ptr) + 100.0)


PENDING, RANGES = [], []
LATE = torch._C._dispatch_library("IMPL", "profiler", "", "", 0)
KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)


def work(a, b, y):
    torch.matmul(a * (y.view(-1)[0] / (a.view(-1)[0] + 100.0)), b, out=y)


def enter(name, args=None):
    RANGES.append(name)
    with torch._C._ExcludeDispatchKeyGuard(KEYS):
        return torch.ops.profiler._record_function_enter_new(name, args)


def leave(record):
    with torch._C._ExcludeDispatchKeyGuard(KEYS):
        torch.ops.profiler._record_function_exit._RecordFunction(record)
    while PENDING:
        work(*PENDING.pop())
    RANGES.pop()


LATE.impl("_record_function_enter_new", "BackendSelect", enter)
LATE.impl("_record_function_exit._RecordFunction", "BackendSelect", leave)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        profiled = len(RANGES) > 0
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        mm_kernel[(1,)](a, y)
        if profiled:
            PENDING.append((a, b, y))
        else:
            work(a, b, y)
        return y
