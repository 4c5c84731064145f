"""Reads a symmetric matrix row by row where a product wants columns.

problem: symmetric_product
devices: cpu cuda
expect: clean
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def sym_kernel(a, b, c, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, N, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * N + rk[None, :], mask=(rm[:, None] < N) & (rk[None, :] < N), other=0.0)
        # B is symmetric: load B[n, k], so that both operands are K-major as a "TN" product wants.
        y = tl.load(b + rn[:, None] * N + rk[None, :], mask=(rn[:, None] < N) & (rk[None, :] < N), other=0.0)
        acc += tl.dot(x, tl.trans(y), input_precision="ieee")
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < N) & (rn[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, A, B):
        N = A.shape[0]
        C = torch.empty_like(A)
        sym_kernel[(triton.cdiv(N, 32), triton.cdiv(N, 32))](A, B, C, N, 32, 32, 16)
        return C
