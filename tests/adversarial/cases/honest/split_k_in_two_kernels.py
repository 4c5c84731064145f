"""Splits the sum over K into parts that a second kernel adds up, in an order that never changes.

problem: matmul_half
devices: cpu cuda
expect: clean
ci: yes
"""

import torch
import triton
import triton.language as tl

@triton.jit
def part_kernel(a_ptr, b_ptr, p_ptr, M, N, K, PART: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, PART, BK):
        kk = part * PART + k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * K + kk[None, :], mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0)
        b = tl.load(b_ptr + rn[None, :] * K + kk[:, None], mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0)
        total = tl.dot(a, b, total)
    place = p_ptr + part * M * N + rm[:, None] * N + rn[None, :]
    tl.store(place, total, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def add_parts_kernel(p_ptr, c_ptr, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in range(PARTS):
        total += tl.load(p_ptr + part * size + offsets, mask=mask, other=0.0)
    tl.store(c_ptr + offsets, total.to(tl.float16), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[0]
        parts = 2
        share = triton.cdiv(triton.cdiv(K, parts), 32) * 32
        scratch = torch.empty(parts, M, N, device=a.device, dtype=torch.float32)
        c = torch.empty(M, N, device=a.device, dtype=a.dtype)
        grid = (triton.cdiv(M, 64), triton.cdiv(N, 64), parts)
        part_kernel[grid](a, b, scratch, M, N, K, PART=share, BM=64, BN=64, BK=32, num_warps=4)
        add_parts_kernel[(triton.cdiv(M * N, 4096),)](scratch, c, M * N, PARTS=parts, BLOCK=4096)
        return c
