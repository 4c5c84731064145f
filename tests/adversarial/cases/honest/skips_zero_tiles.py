"""Skips the tiles of a triangular matrix that are zero.

problem: triangular_product
devices: cpu cuda
expect: clean
ci: yes
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def tril_kernel(a, b, c, M, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    # A[i, k] is zero for k > i and B[k, j] for k < j: only pn*BN <= k < (pm+1)*BM counts.
    lo = (pn * BN // BK) * BK
    hi = tl.minimum((pm + 1) * BM, M)
    for k in range(lo, hi, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * M + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < M), other=0.0)
        y = tl.load(b + rk[:, None] * M + rn[None, :], mask=(rk[:, None] < M) & (rn[None, :] < M), other=0.0)
        acc += tl.dot(x, y, input_precision="ieee")
    acc = tl.where(rm[:, None] >= rn[None, :], acc, 0.0)
    tl.store(c + rm[:, None] * M + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < M))


class ModelNew(nn.Module):
    def forward(self, A, B):
        M = A.shape[0]
        C = torch.empty_like(A)
        BM = BN = BK = 16
        tril_kernel[(triton.cdiv(M, BM), triton.cdiv(M, BN))](A, B, C, M, BM, BN, BK)
        return C
