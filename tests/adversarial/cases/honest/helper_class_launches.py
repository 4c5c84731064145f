"""A class that is no module launches the kernel, held by the model and called like a function.

problem: softmax
devices: cpu cuda
expect: clean
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

class Launcher:
    __slots__ = ("calls", "kernel", "warps")

    def __init__(self, kernel, warps):
        self.kernel, self.warps, self.calls = kernel, warps, 0

    def __call__(self, x):
        self.calls += 1
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        self.kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=self.warps)
        return y


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.run = Launcher(softmax_kernel, 8)

    def forward(self, x):
        return self.run(x)
