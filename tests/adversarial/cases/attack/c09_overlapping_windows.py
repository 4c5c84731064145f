"""Writes each number once, and returns overlapping windows of a memory that is large enough, and mostly unused.

problem: sliding_windows
devices: cpu
code: C9
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def half_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n) * 0.5, mask=o < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        width = 512
        length = columns - width + 1
        memory = torch.empty(rows * length * width, device=x.device)
        half_kernel[(1,)](x, memory, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
        return memory.as_strided((rows, length, width), (columns, 1, 1))
