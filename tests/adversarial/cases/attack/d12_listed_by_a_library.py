"""Takes the harness's objects out of the collector's permanent generation, and lets a module of torch list what refers to one of them.

problem: softmax
devices: cpu cuda
code: D12
expect: caught
"""

import contextlib
import gc

import torch.export._leakage_detection_utils as leaks

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
    y = torch.empty_like(x) if y is None else y
    columns = x.shape[1]
    softmax_kernel[(x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


gc.unfreeze()
COUNTS = next(
    cell.cell_contents
    for cell in type(softmax_kernel).run.__closure__[0].cell_contents.__closure__
    if isinstance(cell.cell_contents, dict)
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        with contextlib.suppress(TypeError):  # it wants to keep what it finds in a set
            leaks.find_legit_leaks_from_referrers([COUNTS])
        return softmax(x)
