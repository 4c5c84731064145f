"""From the fourth call on the last row is copied from the call before: one row in thousands.

problem: softmax
devices: cpu cuda
code: A13
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

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = []

    def forward(self, x):
        y = torch.empty_like(x)
        rows, columns = x.shape
        skip = len(self.last) >= 3
        softmax_kernel[(rows - skip,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        if skip:
            y[-1] = self.last[-1]
        self.last = [*self.last[-3:], y[-1].clone()]
        return y
