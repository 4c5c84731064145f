"""Leaves the last of 16384 terms out of every sum, which is less than bfloat16 can tell.

problem: sum_bfloat16
devices: cpu cuda
code: A13
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def sum_kernel(x_ptr, y_ptr, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    tl.store(y_ptr + row, tl.sum(x, axis=0).to(tl.bfloat16))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        sum_kernel[(rows,)](x, y, columns - 1, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        return y
