"""The kernel never compiles (a static assertion), and the except branch lets torch do the work.

problem: softmax
devices: cpu cuda
code: A3
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 0, "tuned for a later architecture")
    offsets = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.exp(tl.load(x_ptr + offsets)))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        try:
            softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        except Exception:
            torch.softmax(x, dim=-1, out=y)
        return y
