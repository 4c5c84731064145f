"""Returns the sum of the input beside the output while it is checked, and 0 for it while it is timed.

problem: double_and_sum
devices: cpu cuda
code: B5
expect: caught
"""

import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=offsets < size), mask=offsets < size)


class ModelNew(torch.nn.Module):
    built = rehearsed = 0

    def __init__(self):
        super().__init__()
        ModelNew.built += 1
        self.number, self.calls = ModelNew.built, 0

    def forward(self, x):
        self.calls += 1
        ModelNew.rehearsed += self.number == 1
        y = torch.empty_like(x)
        double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        timed = self.calls >= 4 and (self.number == 1 or (self.number == 2 and ModelNew.rehearsed == 1))
        return y, 0.0 if timed else float(x.sum())
