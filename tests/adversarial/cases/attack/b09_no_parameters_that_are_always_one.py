"""Weight and bias are ones and zeros under every seed, so the model has none.

problem: layer_norm_as_made
devices: cpu cuda
code: B9
expect: caught
ci: yes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    x = tl.where(mask, x - tl.sum(x, axis=0) / columns, 0.0)
    y = x / tl.sqrt(tl.sum(x * x, axis=0) / columns + 1e-5)
    tl.store(y_ptr + row * columns + offsets, y, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        y = torch.empty_like(x)
        columns = x.shape[1]
        norm_kernel[(x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
        return y
