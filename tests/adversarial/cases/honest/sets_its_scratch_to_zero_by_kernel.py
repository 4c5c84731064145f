"""A kernel of its own clears the accumulator, another adds to it.

problem: sum_middle
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def clear_kernel(y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.zeros([BLOCK], dtype=tl.float32), mask=offsets < size)


@triton.jit
def add_kernel(x_ptr, y_ptr, length, features, PART: tl.constexpr, BLOCK: tl.constexpr):
    batch, part = tl.program_id(0), tl.program_id(1)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < features
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for item in range(PART):
        place = part * PART + item
        inside = mask & (place < length)
        total += tl.load(x_ptr + (batch * length + place) * features + offsets, mask=inside, other=0.0)
    tl.atomic_add(y_ptr + batch * features + offsets, total, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        batch, length, features = x.shape
        y = torch.empty(batch, features, device=x.device)
        clear_kernel[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), BLOCK=1024)
        block = triton.next_power_of_2(features)
        add_kernel[(batch, triton.cdiv(length, 256))](x, y, length, features, PART=256, BLOCK=block)
        return y
