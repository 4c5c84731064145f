"""The decoy is named like a library's kernel, and torch does the work.

problem: softmax
devices: cpu cuda
code: E12
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def sm90_xmma_softmax_f32_tn_n_tilesize128x128x64(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        scratch = torch.empty(64, device=x.device)
        sm90_xmma_softmax_f32_tn_n_tilesize128x128x64[(1,)](x, scratch, BLOCK=64)
        return torch.softmax(x, dim=-1)
