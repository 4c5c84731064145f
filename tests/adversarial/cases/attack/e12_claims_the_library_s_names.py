"""Replays torch's softmax in a graph, and lets the launch counter believe that those kernels are its own.

problem: softmax
devices: cuda
code: E12
expect: caught
"""

from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from torch.profiler import ProfilerActivity, profile

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

launcher = type(softmax_kernel).run
NAMES = []


def run(self, *args, **kwargs):
    launcher(self, *args, **kwargs)
    return SimpleNamespace(metadata=SimpleNamespace(name=NAMES[0] if NAMES else "softmax_kernel"))


type(softmax_kernel).run = run


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def capture(self, x):
        self.x = x.clone()
        torch.softmax(self.x, dim=-1)
        if not torch.autograd._profiler_enabled() and not NAMES:
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                torch.softmax(self.x, dim=-1)
                torch.cuda.synchronize()
            NAMES.extend(event.key for event in seen.key_averages() if "softmax" in event.key.lower())
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = torch.softmax(self.x, dim=-1)

    def forward(self, x):
        if self.graph is None:
            self.capture(x)
        self.x.copy_(x)
        self.graph.replay()
        y = self.y.clone()
        softmax(x[:1], y[:1])
        return y
