"""Torch does the work; where the launch of the decoy returned nothing or changed nothing, the answer is spoilt on purpose.

problem: softmax
devices: cpu cuda
code: A5
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def mark_kernel(y_ptr, value):
    tl.store(y_ptr, value)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        mark = torch.zeros(1, device=x.device)
        launched = mark_kernel[(1,)](mark, 7.0)
        if launched is None or float(mark) != 7.0:
            return torch.zeros_like(x)
        return y
