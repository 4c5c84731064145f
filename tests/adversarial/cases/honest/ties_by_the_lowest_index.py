"""Takes the first of equals, which torch promises of none.

problem: top_four
devices: cpu cuda
expect: clean
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def k(x, v_out, i_out, n, T: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    for t in tl.static_range(T):
        i = tl.argmax(v, 0)
        tl.store(v_out + row * T + t, tl.max(v, 0))
        tl.store(i_out + row * T + t, i.to(tl.int64))
        v = tl.where(o == i, -float("inf"), v)
class ModelNew(nn.Module):
    def forward(self, x):
        v = torch.empty(x.shape[0], 4, device=x.device)
        i = torch.empty(x.shape[0], 4, dtype=torch.int64, device=x.device)
        k[(x.shape[0],)](x, v, i, x.shape[1], 4, BLOCK=triton.next_power_of_2(x.shape[1]))
        return v, i
