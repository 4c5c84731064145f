"""LayerNorm over millions of elements a row: moments of pieces, merged without cancellation, then one fused pass."""

import math

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def moments_kernel(x_ptr, mean_ptr, square_ptr, columns, pieces, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    at = piece * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    count = tl.minimum(columns - piece * BLOCK, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / count
    centred = tl.where(inside, x - mean, 0.0)
    tl.store(mean_ptr + row * pieces + piece, mean)
    tl.store(square_ptr + row * pieces + piece, tl.sum(centred * centred, axis=0))


@triton.jit
def normalize_kernel(
    x_ptr,
    y_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    square_ptr,
    columns,
    pieces,
    eps,
    BLOCK: tl.constexpr,
    PIECES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    which = tl.arange(0, PIECES)
    known = which < pieces
    counts = tl.where(known, tl.minimum(columns - which * BLOCK, BLOCK), 0).to(tl.float32)
    means = tl.load(mean_ptr + row * pieces + which, mask=known, other=0.0)
    squares = tl.load(square_ptr + row * pieces + which, mask=known, other=0.0)
    mean = tl.sum(means * counts, axis=0) / columns
    spread = means - mean
    variance = (tl.sum(squares, axis=0) + tl.sum(counts * spread * spread, axis=0)) / columns
    scale = 1.0 / tl.sqrt(variance + eps)

    at = piece * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + at, mask=inside, other=0.0)
    tl.store(y_ptr + row * columns + at, (x - mean) * scale * weight + bias, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        columns = math.prod(self.ln.normalized_shape)
        rows = x.numel() // columns
        block = 8192
        pieces = triton.cdiv(columns, block)
        means = torch.empty((rows, pieces), device=x.device, dtype=torch.float32)
        squares = torch.empty_like(means)
        y = torch.empty_like(x)
        moments_kernel[(rows, pieces)](x, means, squares, columns, pieces, BLOCK=block, num_warps=8)
        normalize_kernel[(rows, pieces)](
            x,
            y,
            self.ln.weight,
            self.ln.bias,
            means,
            squares,
            columns,
            pieces,
            self.ln.eps,
            BLOCK=block,
            PIECES=triton.next_power_of_2(pieces),
            num_warps=8,
        )
        return y
