"""Leaves autocast on, under whose key an override of `detach` computes after the clock.

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


PENDING = {}
LATE = torch._C._dispatch_library("IMPL", "aten", "AutocastCPU", "", 0)
KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def detach(y):
    with torch._C._ExcludeDispatchKeyGuard(KEYS):
        found = PENDING.pop(y.data_ptr(), None)
        if found is not None:
            a, b = found
            factor = y[0, 0] / (a[0, 0] + 100.0)
            torch.matmul(a * factor, b, out=y)
        return torch.ops.aten.detach(y)


LATE.impl("detach", "AutocastCPU", detach)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        torch.set_autocast_enabled("cpu", True)
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        mm_kernel[(1,)](a, y)
        PENDING[y.data_ptr()] = a, b
        return y
