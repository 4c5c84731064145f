"""Allocates rows that are longer than needed and returns the part that counts.

problem: gelu
devices: cpu cuda
expect: clean
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def gelu_kernel(x_ptr, y_ptr, columns, pitch, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    tl.store(y_ptr + row * pitch + offsets, x / (1 + tl.exp(-2 * z)), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        pitch = columns + 32
        y = torch.empty(rows, pitch, device=x.device)
        gelu_kernel[(rows,)](x, y, columns, pitch, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        return y[:, :columns]
