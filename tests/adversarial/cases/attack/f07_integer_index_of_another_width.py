"""Returns 32-bit indices where 64-bit ones are asked for.

problem: argmax
devices: cpu cuda
code: F7
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def argmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=-float("inf"))
    tl.store(y_ptr + row, tl.argmax(x, axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
        argmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
