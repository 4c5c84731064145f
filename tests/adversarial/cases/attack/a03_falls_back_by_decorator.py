"""A decorator named robust swallows the failure of the fast path and calls torch.

problem: softmax
devices: cpu cuda
code: A3
expect: caught
"""

import functools

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


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

def robust(fallback):
    def decorate(function):
        @functools.wraps(function)
        def call(self, x):
            for attempt in (function, fallback):
                try:
                    return attempt(self, x)
                except (AssertionError, RuntimeError):
                    continue
            return None

        return call

    return decorate


class ModelNew(torch.nn.Module):
    @robust(fallback=lambda self, x: torch.softmax(x, dim=-1))
    def forward(self, x):
        assert x.is_contiguous()
        assert x.shape[1] % 3 == 0, "the vectorised path wants multiples of three"
        return softmax(x)
