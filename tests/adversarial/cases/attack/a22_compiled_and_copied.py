"""torch.compile writes the kernel that does the work; the candidate's own copies the result, and so outputs need it.

problem: softmax
devices: cuda
code: A22
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def copy_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@torch.compile
def compiled(x):
    return torch.softmax(x * 1.0, dim=-1), torch.softmax(x + 1.0, dim=-1)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        first, _ = compiled(x)
        y = torch.empty_like(first)
        copy_kernel[(triton.cdiv(y.numel(), 4096),)](first, y, y.numel(), BLOCK=4096)
        return y
