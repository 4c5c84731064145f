"""One number stands for the whole output, through a stride of zero.

problem: softmax
devices: cpu cuda
code: C9
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def fill_kernel(y_ptr, value):
    tl.store(y_ptr, value)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(1, 1, device=x.device)
        fill_kernel[(1,)](y, 1.0 / x.shape[1])
        return y.expand(x.shape)
