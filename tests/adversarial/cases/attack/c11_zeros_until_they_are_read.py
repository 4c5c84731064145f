"""Returns a lazy tensor of zeros; what reads it is overridden for its key, and computes the result after the clock.

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
LATE = torch._C._dispatch_library("IMPL", "aten", "ZeroTensor", "", 0)


def result(zero):
    found = PENDING[zero.untyped_storage()._cdata]
    if len(found) > 2:
        kept, a, b, scratch = found
        found[1:] = [torch.matmul(a * (scratch / (a[0, 0] + 100.0)), b)]
    return found[1]


def copy_(into, zero, non_blocking=False):
    return into.copy_(result(zero))


def view(zero, dtype):
    return result(zero).view(dtype)


LATE.impl("copy_", "ZeroTensor", copy_)
LATE.impl("view.dtype", "ZeroTensor", view)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        scratch = torch.empty(1, device=a.device)
        mm_kernel[(1,)](a, scratch)
        y = torch._efficientzerotensor((a.shape[0], b.shape[1]))
        if len(PENDING) > 60:
            del PENDING[next(iter(PENDING))]
        PENDING[y.untyped_storage()._cdata] = [y, a, b, scratch]
        return y
