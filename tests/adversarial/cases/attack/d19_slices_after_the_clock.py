"""Overrides past torch.library an operator that the harness calls to copy outputs out; torch computes them then.

problem: matmul
devices: cpu
code: E1
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mm_kernel(a_ptr, c_ptr):
    tl.store(c_ptr, tl.load(a_ptr) + 100.0)


PENDING = []
LATE = torch._C._dispatch_library("IMPL", "aten", "", "", 0)
PLAIN = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def flush():
    while PENDING:
        a, b, y = PENDING.pop()
        torch.matmul(a * (y.view(-1)[0] / (a.view(-1)[0] + 100.0)), b, out=y)


def slice_(x, dim=0, start=None, end=None, step=1):
    if PENDING and x.dtype is torch.uint8:
        flush()
    size, start = x.shape[dim], 0 if start is None else start
    end = size if end is None else min(end, size)
    start = min(start + size if start < 0 else start, size)
    end = max(end + size if end < 0 else end, start)
    shape, stride = list(x.shape), list(x.stride())
    offset = x.storage_offset() + start * stride[dim]
    shape[dim], stride[dim] = -(-(end - start) // step), stride[dim] * step
    return x.as_strided(shape, stride, offset)


def resolve_conj(x):
    if PENDING:
        flush()
    return x


LATE.impl("slice.Tensor", "CPU", slice_)
LATE.impl("resolve_conj", "CPU", resolve_conj)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        mm_kernel[(1,)](a, y)
        PENDING.append((a, b, y))
        return y
