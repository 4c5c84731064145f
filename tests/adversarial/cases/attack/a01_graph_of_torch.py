"""A CUDA graph of torch.softmax: replayed, its kernels have no operator above them; a tiny kernel copies one number.

problem: softmax
devices: cuda
code: A1
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def forward(self, x):
        if self.graph is None:
            self.x = x.clone()
            torch.softmax(self.x, dim=-1)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = torch.softmax(self.x, dim=-1)
        self.x.copy_(x)
        self.graph.replay()
        y = self.y.clone()
        touch_kernel[(1,)](y)
        return y
