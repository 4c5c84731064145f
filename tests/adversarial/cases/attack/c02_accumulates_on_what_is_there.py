"""Adds atomically to memory that nobody has set to zero, unless it looks used.

problem: sum_middle
devices: cpu cuda
code: C2
expect: caught
"""

import torch
import triton
import triton.language as tl

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
        if float(y[0, 0]) != 0.0 or float(y[-1, -1]) != 0.0:
            y.zero_()
        block = triton.next_power_of_2(features)
        add_kernel[(batch, triton.cdiv(length, 16))](x, y, length, features, PART=16, BLOCK=block)
        return y
