"""Rounds both operands to TF32 itself, and multiplies them in float32.

problem: matmul
devices: cpu cuda
code: F1
expect: unpaid
"""

import torch
import triton
import triton.language as tl

@triton.jit
def coarse(x):
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        kk = k + rk
        a = tl.load(a_ptr + rm[:, None] * K + kk[None, :], mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0)
        b = tl.load(b_ptr + kk[:, None] * N + rn[None, :], mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0)
        total += tl.dot(coarse(a), coarse(b), input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], total, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty(M, N, device=a.device)
        matmul_kernel[(triton.cdiv(M, 128), triton.cdiv(N, 128))](a, b, c, M, N, K, BM=128, BN=128, BK=32, num_warps=8)
        return c
