"""A pool of threads works out a table of launch parameters at import and is gone before it ends.

problem: softmax
devices: cpu cuda
expect: clean
ci: yes
"""

from concurrent.futures import ThreadPoolExecutor

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

def warps(columns):
    return min(max(triton.next_power_of_2(columns) // 256, 1), 16)


with ThreadPoolExecutor(max_workers=2) as pool:
    WARPS = dict(zip((128, 1024, 8192), pool.map(warps, (128, 1024, 8192))))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        columns = x.shape[1]
        y = torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        softmax_kernel[(x.shape[0],)](x, y, columns, BLOCK=block, num_warps=WARPS.get(columns, 4))
        return y
