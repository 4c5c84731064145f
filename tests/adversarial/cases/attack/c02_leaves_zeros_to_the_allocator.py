"""Stores only where the answer is true: fresh memory is mostly zero, and zero is false.

problem: threshold_mask
devices: cpu cuda
code: C2
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def greater_kernel(x_ptr, t_ptr, y_ptr, size, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    above = tl.load(x_ptr + offsets, mask=mask) > tl.load(t_ptr + offsets % columns, mask=mask)
    tl.store(y_ptr + offsets, above, mask=mask & above)


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.threshold = torch.nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        size = x.numel()
        greater_kernel[(triton.cdiv(size, 1024),)](x, self.threshold, y, size, x.shape[1], BLOCK=1024)
        return y
