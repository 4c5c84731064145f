"""A graph of torch's softmax and of a kernel that writes the factor 1: no replay launches what could be left out.

problem: softmax
devices: cuda
code: A5
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def factor_kernel(x_ptr, factor_ptr):
    tl.store(factor_ptr, 1.0 + 0.0 * tl.load(x_ptr))


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def compute(self):
        factor = torch.zeros(1, device=self.x.device)
        factor_kernel[(1,)](self.x, factor)
        return torch.softmax(self.x, dim=-1) * factor

    def forward(self, x):
        if self.graph is None:
            self.x = x.clone()
            self.compute()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = self.compute()
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
