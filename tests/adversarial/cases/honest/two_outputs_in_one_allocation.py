"""Both outputs are views of one allocation, next to each other and never overlapping.

problem: residual_rms_norm
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def norm_kernel(x_ptr, r_ptr, w_ptr, y_ptr, t_ptr, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    total = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    total += tl.load(r_ptr + row * columns + offsets, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / columns + epsilon)
    w = tl.load(w_ptr + offsets, mask=mask, other=0.0)
    tl.store(t_ptr + row * columns + offsets, total, mask=mask)
    tl.store(y_ptr + row * columns + offsets, total * scale * w, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = torch.nn.Parameter(torch.randn(features))

    def forward(self, x, residual):
        both = x.new_empty((2, *x.shape))
        y, total = both.unbind()
        block = triton.next_power_of_2(x.shape[1])
        arguments = (x, residual, self.weight, y, total, x.shape[1], self.epsilon)
        norm_kernel[(x.shape[0],)](*arguments, BLOCK=block, num_warps=8)
        return y, total
