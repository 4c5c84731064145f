"""Queues long work on a side stream after each call, which shares the device with the reference's next call.

problem: softmax
devices: cuda
code: D15
expect: caught
"""

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

@triton.jit
def burn_kernel(y_ptr, steps):
    value = tl.program_id(0).to(tl.float32)
    for _ in range(steps):
        value = value * 1.0001 + 0.5
    tl.store(y_ptr + tl.program_id(0), value)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()
        self.waste = torch.empty(528, device="cuda")

    def forward(self, x):
        y = softmax(x)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            burn_kernel[(528,)](self.waste, 2_000_000)
        return y
