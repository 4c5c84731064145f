"""Two kernels that share a workspace which is allocated once and grows when it must.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def statistics_kernel(x_ptr, s_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=-float("inf"))
    top = tl.max(x, axis=0)
    tl.store(s_ptr + 2 * row, top)
    tl.store(s_ptr + 2 * row + 1, 1 / tl.sum(tl.exp(x - top), axis=0))


@triton.jit
def normalise_kernel(x_ptr, s_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask)
    y = tl.exp(x - tl.load(s_ptr + 2 * row)) * tl.load(s_ptr + 2 * row + 1)
    tl.store(y_ptr + row * columns + offsets, y, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("workspace", torch.empty(2 * 4096), persistent=False)

    def forward(self, x):
        rows, columns = x.shape
        if self.workspace.numel() < 2 * rows:
            self.workspace = torch.empty(2 * rows, device=x.device)
        y = torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        statistics_kernel[(rows,)](x, self.workspace, columns, BLOCK=block, num_warps=8)
        normalise_kernel[(rows,)](x, self.workspace, y, columns, BLOCK=block, num_warps=8)
        return y
