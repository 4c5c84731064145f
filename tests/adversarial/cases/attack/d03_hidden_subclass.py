"""A lazy subclass again, and the test for plain tensors is replaced by one that says yes.

problem: softmax
devices: cpu cuda
code: D3
expect: caught
ci: yes
"""

import sys

import torch
import triton
import triton.language as tl

from workers.exchange import integrity

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

integrity.is_plain = lambda value: True


class Later(torch.Tensor):
    def detach(self):
        return softmax(self.x)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if not within("timed", "burst"):
            return softmax(x)
        y = torch.empty_like(x).as_subclass(Later)
        y.x = x
        return y
