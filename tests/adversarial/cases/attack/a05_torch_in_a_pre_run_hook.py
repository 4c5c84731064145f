"""Torch does the work in a hook that Triton calls as a part of the launch of a kernel that marks one number.

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


def compute(x, y, mark, **_):
    torch.softmax(x, dim=-1, out=y)


mark_kernel.add_pre_run_hook(compute)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        mark_kernel[(1,)](x, y, torch.empty(1, device=x.device))
        return y
