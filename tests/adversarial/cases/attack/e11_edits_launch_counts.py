"""Torch does the work, and the dict in which a calling frame counts launches gets one more entry.

problem: softmax
devices: cpu cuda
code: E11
expect: caught
ci: yes
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

class ModelNew(torch.nn.Module):
    def forward(self, x):
        frame = sys._getframe(1)
        while frame is not None:
            counts = frame.f_locals.get("counts")
            if isinstance(counts, dict):
                counts["softmax_kernel", __file__] = 1
            frame = frame.f_back
        return torch.softmax(x, dim=-1)
