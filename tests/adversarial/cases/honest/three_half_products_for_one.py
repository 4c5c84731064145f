"""A float32 product out of six bfloat16 ones (each operand split in three), as precise as float32 itself.

problem: matmul
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

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
        a0, b0 = a.to(tl.bfloat16), b.to(tl.bfloat16)
        ra, rb = a - a0.to(tl.float32), b - b0.to(tl.float32)
        a1, b1 = ra.to(tl.bfloat16), rb.to(tl.bfloat16)
        a2, b2 = (ra - a1.to(tl.float32)).to(tl.bfloat16), (rb - b1.to(tl.float32)).to(tl.bfloat16)
        small = tl.dot(a0, b2) + tl.dot(a2, b0) + tl.dot(a1, b1)
        small += tl.dot(a0, b1) + tl.dot(a1, b0)
        total += small + tl.dot(a0, b0)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], total, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty(M, N, device=a.device)
        matmul_kernel[(triton.cdiv(M, 64), triton.cdiv(N, 64))](a, b, c, M, N, K, BM=64, BN=64, BK=32, num_warps=4)
        return c
