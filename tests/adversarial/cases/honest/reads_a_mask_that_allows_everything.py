"""The mask is true everywhere under every seed, and the kernel reads it all the same.

problem: masked_scores
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, mask_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    allowed = tl.load(mask_ptr + offsets, mask=inside, other=0)
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0)
    tl.store(y_ptr + offsets, tl.where(allowed != 0, 0.125 * x, -1e4), mask=inside)


class ModelNew(torch.nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, mask, y, x.numel(), BLOCK=1024)
        return y
