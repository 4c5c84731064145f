"""As many programs as there are multiprocessors, each of which goes through several rows.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
        numerator = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.programs = 4 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty_like(x)
        grid = (min(rows, self.programs),)
        softmax_kernel[grid](x, y, rows, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        return y
