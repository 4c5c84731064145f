"""Packs weights by a kernel, and anew after the mode of the module has changed.

problem: linear_gelu_scale
devices: cpu cuda
expect: clean
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def linear_gelu(x, wt, b, s, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0); pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM); rn = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(x + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        w = tl.load(wt + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(a, w, input_precision="ieee")
    acc += tl.load(b + rn, mask=rn < N, other=0.0)[None, :]
    g = 0.5 * acc * (1 + tl.erf(acc * 0.7071067811865476))
    g *= tl.load(s + rn, mask=rn < N, other=0.0)[None, :]
    tl.store(y + rm[:, None] * N + rn[None, :], g, mask=(rm[:, None] < M) & (rn[None, :] < N))
@triton.jit
def transpose(w, wt, N, K, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B); j = tl.program_id(1) * B + tl.arange(0, B)
    m = (i[:, None] < N) & (j[None, :] < K)
    v = tl.load(w + i[:, None] * K + j[None, :], mask=m)
    tl.store(wt + j[None, :] * N + i[:, None], v, mask=m)
def pack(w):
    N, K = w.shape
    wt = torch.empty(K, N, device=w.device, dtype=w.dtype)
    transpose[(triton.cdiv(N, 32), triton.cdiv(K, 32))](w, wt, N, K, 32)
    return wt
class Base(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(out_features))
        nn.init.normal_(self.linear.bias)
        self.packed = None
    def compute(self, x, wt):
        M, K = x.shape; N = wt.shape[1]
        y = torch.empty(M, N, device=x.device)
        linear_gelu[(triton.cdiv(M, 16), triton.cdiv(N, 16))](x, wt, self.linear.bias, self.scale, y, M, N, K, 16, 16, 32)
        return y

class ModelNew(Base):
    def train(self, mode=True):
        self.packed = None           # weights may change while training
        return super().train(mode)
    def _load_from_state_dict(self, *a, **k):
        self.packed = None
        return super()._load_from_state_dict(*a, **k)
    def forward(self, x):
        if self.training:
            return self.compute(x, self.linear.weight.t().contiguous())
        if self.packed is None:
            self.packed = pack(self.linear.weight)
        return self.compute(x, self.packed)
