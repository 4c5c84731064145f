"""A tensor subclass that computes when it is looked at, only in timed calls.

problem: softmax
devices: cpu cuda
code: D3
expect: caught
"""

import sys

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

class Later(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args = [softmax(a.x) if type(a) is Later else a for a in args]
        return function(*args, **(kwargs or {}))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if not within("timed", "burst"):
            return softmax(x)
        y = torch.empty_like(x).as_subclass(Later)
        y.x = x
        return y
