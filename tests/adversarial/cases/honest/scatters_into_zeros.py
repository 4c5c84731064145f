"""Writes one number of each row into memory that torch has cleared.

problem: largest_of_each_row
devices: cpu cuda
expect: clean
ci: yes
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def k(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    i = tl.argmax(v, 0)
    tl.store(y + row * n + i, tl.max(v, 0))
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        k[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
