"""Halves every time that is reported, as the frame leaves the process.

problem: softmax
devices: cpu cuda
code: D10
expect: caught
"""

import torch
import triton
import triton.language as tl

from workers.isolation.wire import Channel

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

honest = Channel.send


def shaved(value, factor=0.5):
    if isinstance(value, float):
        return value * factor
    return [shaved(item) for item in value] if isinstance(value, list) else value


def send(self, message, *args, **kwargs):
    message = {key: shaved(value) if "ms" in key else value for key, value in message.items()}
    return honest(self, message, *args, **kwargs)


Channel.send = send


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x)
