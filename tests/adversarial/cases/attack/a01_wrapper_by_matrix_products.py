"""Softmax spelled in torch arithmetic, so that no operator has the name of the problem.

problem: softmax
devices: cpu cuda
code: A1
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        numerator = (x - x.amax(dim=-1, keepdim=True)).exp_()
        ones = torch.ones(x.shape[1], 1, dtype=x.dtype, device=x.device)
        return numerator.div_(numerator @ ones)
