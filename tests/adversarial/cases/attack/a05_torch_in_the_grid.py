"""Torch does the work in the function that says how large the grid is; the kernel marks one number.

problem: softmax
devices: cpu cuda
code: A5
expect: caught
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mark_kernel(x_ptr, y_ptr, mark_ptr):
    tl.store(mark_ptr, tl.load(x_ptr))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)

        def grid(meta):
            torch.softmax(x, dim=-1, out=y)
            return (1,)

        mark_kernel[grid](x, y, torch.empty(1, device=x.device))
        return y
