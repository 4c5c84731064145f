"""Registers a forward hook on its own submodule, which does the last step of the work by a kernel.

problem: softmax
devices: cpu cuda
expect: clean
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

class Rows(torch.nn.Module):
    def forward(self, x):
        return x.contiguous()


def normalise(module, inputs, x):
    rows, columns = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Rows()
        self.rows.register_forward_hook(normalise)

    def forward(self, x):
        return self.rows(x)
