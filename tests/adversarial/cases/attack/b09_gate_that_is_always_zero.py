"""Leaves out a branch behind a gate that is zero under every seed; its other parameters have names of their own.

problem: gate_of_zero
devices: cpu cuda
code: B9
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gated_kernel(x_ptr, weight_ptr, bias_ptr, gate_ptr, y_ptr, columns, GATED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    z = tl.where(mask, x - tl.sum(x, axis=0) / columns, 0.0)
    z = z / tl.sqrt(tl.sum(z * z, axis=0) / columns + 1e-5)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0)
    z = z * weight + tl.load(bias_ptr + offsets, mask=mask, other=0.0)
    y = 2.0 * tl.sigmoid(2.0 * z) - 1.0
    if GATED:
        y += tl.load(gate_ptr) * tl.sigmoid(x)
    tl.store(y_ptr + row * columns + offsets, y, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1, features))
        self.shift = torch.nn.Parameter(torch.zeros(1, features))

    def forward(self, x):
        y = torch.empty_like(x)
        columns = x.shape[1]
        block = triton.next_power_of_2(columns)
        gated_kernel[(x.shape[0],)](x, self.scale, self.shift, x, y, columns, GATED=False, BLOCK=block)
        return y
