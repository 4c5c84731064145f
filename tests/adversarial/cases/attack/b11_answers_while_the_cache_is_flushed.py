"""Replaces Tensor.zero_: while the stop-watch flushes the cache, the answer for the inputs that lie ready is worked out.

problem: softmax
devices: cpu cuda
code: B11
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

READY = {}
zero = torch.Tensor.zero_


def matrices(frame):
    for value in list(frame.f_locals.values()):
        for item in value if isinstance(value, list) else ():
            if type(item) is torch.Tensor and item.dim() == 2 and item.dtype is torch.float32:
                yield item


def zero_and_answer(self):
    if self.numel() >= 2**24:
        frame = sys._getframe(1)
        while frame is not None:
            for x in matrices(frame):
                READY[x.data_ptr()] = softmax(x)
            frame = frame.f_back
    return zero(self)


torch.Tensor.zero_ = zero_and_answer


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = READY.pop(x.data_ptr(), None)
        return softmax(x) if y is None else y
