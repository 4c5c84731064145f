"""Computes only rows whose first and last elements changed since they were computed last.

problem: softmax
devices: cpu cuda
code: B2
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def changed_rows_kernel(x_ptr, y_ptr, changed_ptr, columns, BLOCK: tl.constexpr):
    row = tl.load(changed_ptr + tl.program_id(0))
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.y = None

    def forward(self, x):
        marks = torch.cat((x[:, :4], x[:, -4:]), dim=1)
        if self.y is None or self.y.shape != x.shape:
            self.y, self.marks = torch.empty_like(x), torch.full_like(marks, float("nan"))
        changed = (marks != self.marks).any(dim=1).nonzero().flatten()
        if len(changed):
            block = triton.next_power_of_2(x.shape[1])
            changed_rows_kernel[(len(changed),)](x, self.y, changed, x.shape[1], BLOCK=block, num_warps=8)
        self.marks = marks
        return self.y.clone()
