"""Plans its launches in a generator, keeps them in slotted dataclasses and named tuples, and caches them.

problem: softmax
devices: cpu cuda
expect: clean
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None, rows=None):
    columns = x.shape[1]
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows or x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


class Shape(NamedTuple):
    rows: int
    columns: int


@dataclass(slots=True, frozen=True)
class Launch:
    start: int
    rows: int
    block: int


@lru_cache(maxsize=32)
def plan(shape):
    return tuple(pieces(shape))


def pieces(shape):
    step = max(shape.rows // 2, 1)
    for start in range(0, shape.rows, step):
        yield Launch(start, min(step, shape.rows - start), triton.next_power_of_2(shape.columns))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        for launch in plan(Shape(*x.shape)):
            rows = slice(launch.start, launch.start + launch.rows)
            softmax_kernel[(launch.rows,)](x[rows], y[rows], x.shape[1], BLOCK=launch.block, num_warps=8)
        return y
