"""Captures a graph for each place that inputs come to lie at, and forgets the oldest of four; it copies nothing.

problem: softmax
devices: cuda
expect: clean
"""

from collections import OrderedDict

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
        self.graphs = OrderedDict()

    def capture(self, x):
        softmax(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = softmax(x)
        return x, graph, y

    def forward(self, x):
        key = x.data_ptr()
        if key not in self.graphs:
            if len(self.graphs) == 4:
                self.graphs.popitem(last=False)
            self.graphs[key] = self.capture(x)
        _, graph, y = self.graphs[key]
        graph.replay()
        return y.clone()
