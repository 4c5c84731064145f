"""Replaces Tensor.zero_: while the stop-watch flushes the cache, the answer is worked out; calls in a row reuse it.

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

def within(*names):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

READY = {}
zero = torch.Tensor.zero_


def matrices(frame):
    for value in list(frame.f_locals.values()):
        for item in value if isinstance(value, list) else ():
            if type(item) is torch.Tensor and item.dim() == 2 and item.dtype is torch.float32:
                yield item


def zero_and_answer(self):
    if self.numel() >= 2**24 and not (within("burst") and READY):
        READY.clear()
        frame = sys._getframe(1)
        while frame is not None:
            for x in matrices(frame):
                READY[x.data_ptr()] = softmax(x)
            frame = frame.f_back
    return zero(self)


torch.Tensor.zero_ = zero_and_answer


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = READY.get(x.data_ptr()) if within("timed", "burst") else None
        return softmax(x) if y is None else y
