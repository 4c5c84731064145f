"""Transposes its weight once and again whenever the weight was changed.

problem: linear_gelu_scale
devices: cpu cuda
expect: clean
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def linear_kernel(x_ptr, w_ptr, b_ptr, s_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        kk = k + rk
        x = tl.load(x_ptr + rm[:, None] * K + kk[None, :], mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0)
        w = tl.load(w_ptr + kk[:, None] * N + rn[None, :], mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0)
        total += tl.dot(x, w, input_precision="ieee")
    total += tl.load(b_ptr + rn, mask=rn < N, other=0.0)[None, :]
    total = 0.5 * total * (1 + tl.erf(total * 0.7071067811865476))
    total *= tl.load(s_ptr + rn, mask=rn < N, other=0.0)[None, :]
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], total, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features)
        self.scale = torch.nn.Parameter(torch.randn(out_features))
        torch.nn.init.normal_(self.linear.bias)
        self.packed, self.packed_for = None, None

    def weight(self):
        weight = self.linear.weight
        version = (weight.data_ptr(), weight._version)
        if version != self.packed_for:
            self.packed, self.packed_for = weight.detach().t().contiguous(), version
        return self.packed

    def forward(self, x):
        (M, K), N = x.shape, self.scale.shape[0]
        y = torch.empty(M, N, device=x.device)
        grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
        linear_kernel[grid](x, self.weight(), self.linear.bias, self.scale, y, M, N, K, BM=64, BN=64, BK=32)
        return y
