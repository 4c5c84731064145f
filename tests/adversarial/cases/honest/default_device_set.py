"""Sets the default device at import, as scripts do.

problem: softmax
devices: cpu cuda
expect: clean
ci: yes
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


def softmax(x, y=None):
    y = torch.empty_like(x) if y is None else y
    columns = x.shape[1]
    softmax_kernel[(x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


torch.set_default_device("cuda")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x)
