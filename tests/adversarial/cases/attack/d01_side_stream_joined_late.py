"""Joins its side stream only in the next call or when the output is fetched: answers are right whenever somebody looks.

problem: softmax
devices: cuda
code: D1
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

detach = torch.Tensor.detach
STREAM = torch.cuda.Stream()


def join_and_detach(self):
    torch.cuda.current_stream().wait_stream(STREAM)
    return detach(self)


torch.Tensor.detach = join_and_detach


class ModelNew(torch.nn.Module):
    def forward(self, x):
        STREAM.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(STREAM):
            y = softmax(x)
        x.record_stream(STREAM)
        return y
