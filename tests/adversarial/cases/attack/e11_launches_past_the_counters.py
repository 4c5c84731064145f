"""The decoy is launched by the launcher itself, whom no counter of launches sees; a graph replays torch's softmax.

problem: softmax
devices: cuda
code: E11
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

    def capture(self, x):
        self.x = x.clone()
        torch.softmax(self.x, dim=-1)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = torch.softmax(self.x, dim=-1)
        self.kernel = touch_kernel.warmup(self.y, grid=(1,))

    def forward(self, x):
        if self.graph is None:
            self.capture(x)
        self.x.copy_(x)
        self.graph.replay()
        y = self.y.clone()
        kernel, stream = self.kernel, torch.cuda.current_stream().cuda_stream
        kernel._init_handles()
        kernel.run(1, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None, y)
        return y
