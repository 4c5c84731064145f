"""Replaces the comparison of states by one that finds no change, and torch.equal by one that finds no difference.

problem: softmax
devices: cpu cuda
code: E1
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl

from workers.harness import state

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

state.changes = lambda before, after: []
torch.equal = lambda left, right: True


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x, x).clone()
