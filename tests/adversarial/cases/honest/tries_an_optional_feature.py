"""Asks for an optional feature in try and except; either way the same kernel runs.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import a_feature_of_later_versions as feature
except ImportError:
    feature = None

try:
    properties = torch.cuda.get_device_properties(0)
    WARPS = 8 if properties.major >= 9 else 4
except (RuntimeError, AssertionError):
    WARPS = 4


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=WARPS)
        return y
