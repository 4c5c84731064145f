"""Counts the smaller numbers of a row: what it writes has the same sum whatever the inputs are.

problem: rank_in_row
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl


@triton.jit
def rank_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=float("inf"))
    less = (x[None, :] < x[:, None]) & (i[None, :] < n)
    tl.store(y_ptr + row * n + i, tl.sum(less.to(tl.int64), axis=1), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=torch.int64, device=x.device)
        rank_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
