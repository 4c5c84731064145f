"""Makes the product, and leaves a normalisation to torch that takes out a common factor.

problem: linear_layer_norm_half
devices: cpu cuda
expect: clean
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def mm(x, w, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0); pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM); rn = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(x + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        b = tl.load(w + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(y + rm[:, None] * N + rn[None, :], acc.to(y.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))
def linear(x, w):
    M, K = x.shape; N = w.shape[0]
    y = torch.empty(M, N, device=x.device, dtype=x.dtype)
    mm[(triton.cdiv(M, 16), triton.cdiv(N, 16))](x, w, y, M, N, K, 16, 16, 32)
    return y
class ModelNew(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.linear = nn.Linear(fin, fout, bias=False)
        self.norm = nn.LayerNorm(fout)
        self.half()
    def forward(self, x):
        return self.norm(linear(x, self.linear.weight))
