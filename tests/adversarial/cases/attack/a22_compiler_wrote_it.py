"""torch.compile writes the Triton kernels; the candidate's own only touches one number.

problem: softmax
devices: cpu cuda
code: A22
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))


@torch.compile
def compiled(x):
    return torch.softmax(x, dim=-1)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = compiled(x)
        touch_kernel[(1,)](y)
        return y
