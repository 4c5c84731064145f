"""After forty calls a graph is replayed on what its buffer held a call ago, and the new input is copied in behind it.

problem: softmax
devices: cuda
code: B6
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
        self.graph, self.calls = None, 0

    def capture(self, x):
        self.x = x.clone()
        softmax(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = softmax(self.x)

    def forward(self, x):
        self.calls += 1
        if self.graph is None:
            self.capture(x)
        if self.calls < 40:
            self.x.copy_(x)
        self.graph.replay()
        y = self.y.clone()
        self.x.copy_(x)
        return y
