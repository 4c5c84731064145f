"""Writes as many ones and zeros whatever the inputs are, only in other places.

problem: one_of_largest
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mark_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    largest = tl.argmax(x, axis=0)
    tl.store(y_ptr + row * columns + offsets, tl.where(offsets == largest, 1.0, 0.0), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        y = torch.empty_like(x)
        mark_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
        return y
