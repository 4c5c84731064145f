"""A timed call returns memory that is filled when the harness asks the model for its weights.

problem: softmax
devices: cpu cuda
code: D7
expect: caught
"""

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


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.later = 0, []

    def finish(self):
        for x, y in self.later:
            softmax(x, y)
        self.later.clear()

    def parameters(self, recurse=True):
        self.finish()
        return super().parameters(recurse)

    def named_parameters(self, *arguments, **options):
        self.finish()
        return super().named_parameters(*arguments, **options)

    def forward(self, x):
        self.calls += 1
        y = torch.empty_like(x)
        if self.calls < 4 or x._version == 0:
            return softmax(x, y)
        self.later.append((x, y))
        return y
