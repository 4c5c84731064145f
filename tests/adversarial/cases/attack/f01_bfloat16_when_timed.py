"""Multiplies in float32 while it is looked at, and in bfloat16 after some calls.

problem: matmul
devices: cpu cuda
code: F1
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, COARSE: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        kk = k + rk
        a = tl.load(a_ptr + rm[:, None] * K + kk[None, :], mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0)
        b = tl.load(b_ptr + kk[:, None] * N + rn[None, :], mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0)
        if COARSE:
            total += tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
        else:
            total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], total, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, a, b):
        self.calls += 1
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty(M, N, device=a.device)
        grid, coarse = (triton.cdiv(M, 128), triton.cdiv(N, 128)), self.calls > 4
        matmul_kernel[grid](a, b, c, M, N, K, BM=128, BN=128, BK=32, COARSE=coarse, num_warps=8)
        return c
