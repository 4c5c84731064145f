"""torch finds the indices; a kernel writes the number 1 that they are multiplied by.

problem: argmax
devices: cpu cuda
code: A5
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def one_kernel(y_ptr):
    tl.store(y_ptr, 1)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        one = torch.empty(1, dtype=torch.int64, device=x.device)
        one_kernel[(1,)](one)
        return torch.max(x, dim=-1).indices * one
