"""Halves of the rows on two side streams, both joined before it returns.

problem: softmax
devices: cpu cuda
expect: clean
ci: yes
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

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def forward(self, x):
        y = torch.empty_like(x)
        current = torch.cuda.current_stream()
        half = x.shape[0] // 2
        for stream, part in zip(self.streams, (slice(None, half), slice(half, None))):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                softmax(x[part], y[part])
            x.record_stream(stream)
            y.record_stream(stream)
        for stream in self.streams:
            current.wait_stream(stream)
        return y
