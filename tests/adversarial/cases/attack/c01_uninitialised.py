"""Returns memory as it is found, in the hope that the reference's answer was there last; a kernel writes one number.

problem: softmax
devices: cpu cuda
code: C1
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        touch_kernel[(1,)](y)
        return y
