"""Selects a sign by a label instead of multiplying with it.

problem: hinge_loss
devices: cpu cuda
expect: clean
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def k(p, t, y, n, D, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    v = tl.load(p + o, mask=m, other=0.0)
    s = tl.load(t + o // D, mask=m, other=0.0)
    h = 1 - tl.where(s > 0, v, -v)      # targets are +1 or -1
    tl.atomic_add(y, tl.sum(tl.where(m, tl.maximum(h, 0.0), 0.0), 0) / n)
class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        y = torch.zeros((), device=predictions.device)
        n = predictions.numel()
        k[(triton.cdiv(n, 512),)](predictions, targets, y, n, predictions.shape[1], 512)
        return y
