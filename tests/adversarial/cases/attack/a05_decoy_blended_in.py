"""Where the kernel's result is finite torch's is taken: the output depends on the kernel, and not on what it computes.

problem: softmax
devices: cpu cuda
code: A5
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def prefix_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    tl.store(y_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.exp(tl.load(x_ptr + offsets) * 0))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        scratch = torch.full((x.shape[0], 16), float("nan"), device=x.device)
        prefix_kernel[(x.shape[0],)](x, scratch, x.shape[1], BLOCK=16)
        return torch.softmax(x, dim=-1) * scratch[:, :1]
