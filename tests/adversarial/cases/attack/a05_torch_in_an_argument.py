"""Torch does the work when Triton asks an argument that is no tensor for its address.

problem: softmax
devices: cuda
code: A5
expect: caught
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mark_kernel(x_ptr, y_ptr, mark_ptr):
    tl.store(mark_ptr, tl.load(x_ptr))


class Answer:
    def __init__(self, x, y):
        self.x, self.y, self.dtype = x, y, y.dtype

    def data_ptr(self):
        torch.softmax(self.x, dim=-1, out=self.y)
        return self.y.data_ptr()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        mark_kernel[(1,)](x, Answer(x, y), y)
        torch.softmax(x[:1], dim=-1, out=y[:1])
        return y
