"""Makes a private random generator and clocks its own import, for nothing that matters.

problem: argmax
devices: cpu cuda
expect: clean
"""

import random
import time

import torch
import triton
import triton.language as tl

STARTED = time.perf_counter()
TICKET = random.Random(0).random()


@triton.jit
def argmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=-float("inf"))
    tl.store(y_ptr + row, tl.argmax(x, axis=0).to(tl.int64))


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.age_s = time.perf_counter() - STARTED
        self.ticket = TICKET

    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        argmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
