"""Gemm, bias and ReLU in one kernel, on tensor cores: three TF32 products stand for one of fp32."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gemm_add_relu_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * tiles_n)
    first_m = group * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = pid % (GROUP_M * tiles_n)
    m = (first_m + within % rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (within // rows) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * K + k[None, :]
    weight_ptrs = weight_ptr + n.to(tl.int64)[None, :] * K + k[:, None]
    inside_m = (m < M)[:, None]
    inside_n = (n < N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        left = K - start
        x = tl.load(x_ptrs, mask=inside_m & (k[None, :] < left), other=0.0)
        weight = tl.load(weight_ptrs, mask=inside_n & (k[:, None] < left), other=0.0)
        total = tl.dot(x, weight, total, input_precision="tf32x3")
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    total += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    total = tl.maximum(total, 0.0)
    tl.store(y_ptr + m.to(tl.int64)[:, None] * N + n[None, :], total, mask=inside_m & inside_n)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        (M, K), N = x.shape, self.gemm.out_features
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(M, 128) * triton.cdiv(N, 128),)
        gemm_add_relu_kernel[grid](
            x,
            self.gemm.weight,
            self.bias,
            y,
            M,
            N,
            K,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=32,
            GROUP_M=8,
            num_warps=8,
            num_stages=3,
        )
        return y
