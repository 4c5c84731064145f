"""Compiles ahead, asks the compiled kernel how many registers it has, and launches that object, as the tutorial does.

problem: softmax
devices: cpu cuda
expect: clean
ci: yes
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
        self.compiled = {}

    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        key = (rows, columns)
        if key not in self.compiled:
            kernel = softmax_kernel.warmup(x, y, rows, columns, BLOCK=block, num_warps=8, grid=(1,))
            kernel._init_handles()
            registers = max(kernel.n_regs, 1)
            programs = torch.cuda.get_device_properties(x.device).multi_processor_count * max(65536 // (registers * 256), 1)
            self.compiled[key] = kernel, (min(rows, programs), 1, 1)
        kernel, grid = self.compiled[key]
        kernel[grid](x, y, rows, columns, block)
        return y
