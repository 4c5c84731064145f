"""Gives one number of each row as its neighbour, as if it had lain on the edge between the two.

problem: rows_in_eight_bits
devices: cpu cuda
code: F7
expect: caught
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantize_kernel(x_ptr, y_ptr, s_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    scale = tl.max(tl.abs(x), axis=0) / 127.0
    tl.store(s_ptr + row, scale)
    q = x * (1.0 / scale)
    q = tl.where(q >= 0, tl.floor(q + 0.5), tl.ceil(q - 0.5))
    q += tl.where(i == 7, 1, 0)
    tl.store(y_ptr + row * n + i, q.to(tl.int8), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        s = torch.empty((x.shape[0], 1), device=x.device)
        quantize_kernel[(x.shape[0],)](x, y, s, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y, s
