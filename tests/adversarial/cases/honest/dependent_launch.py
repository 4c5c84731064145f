"""The kernel lets a tiny one be launched beside it at once: the last event waits for both, so that no work is hidden.

problem: softmax
devices: cuda
expect: clean
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


@triton.jit
def last_kernel(mark_ptr):
    tl.store(mark_ptr, 1.0)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, mark = torch.empty_like(x), torch.empty(1, device=x.device)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), launch_pdl=True)
        last_kernel[(1,)](mark, launch_pdl=True)
        return y
