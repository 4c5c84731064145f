"""Half of the rows are torch's, within a range that is named like a launch of the kernel that does the other half.

problem: softmax
devices: cpu
code: E12
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl
from torch.profiler import record_function

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
        rows, columns = x.shape
        half = rows // 2
        y = torch.empty_like(x)
        softmax_kernel[(half,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        with record_function("drkq::launch::softmax_kernel"):
            torch.softmax(x[half:], dim=-1, out=y[half:])
        return y
