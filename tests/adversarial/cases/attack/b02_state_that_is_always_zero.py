"""The hidden state is zeros under every seed, so the kernel does not read it.

problem: step_from_zero
devices: cpu cuda
code: B2
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def step_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    y = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    tl.store(y_ptr + offsets, y, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x, hidden):
        y = torch.empty_like(x)
        step_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
