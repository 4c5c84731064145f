"""A tiny kernel sets a flag, and torch's result is returned only if the flag is set: with launches suppressed it breaks.

problem: softmax
devices: cpu cuda
code: A5
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def flag_kernel(flag_ptr):
    tl.store(flag_ptr, 1.0)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        flag = torch.zeros(1, device=x.device)
        flag_kernel[(1,)](flag)
        return torch.softmax(x, dim=-1) * flag
