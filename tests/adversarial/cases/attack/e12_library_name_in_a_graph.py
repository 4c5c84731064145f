"""The decoy takes, when it is compiled, the name that the library's kernel has; a graph replays the library's product.

problem: matmul
devices: cuda
code: E12
expect: caught
"""

import torch
import triton
import triton.language as tl
from torch.profiler import ProfilerActivity, profile


def name_of_the_product():
    a = torch.randn(1024, 1024, device="cuda")
    torch.mm(a, a)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        torch.mm(a, a)
        torch.cuda.synchronize()
    names = [event.key for event in seen.key_averages() if event.key.isidentifier() and not event.key.startswith("cuda")]
    return names[0] if names else "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3"


NAME = name_of_the_product()


@triton.jit(repr=lambda _: NAME)
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def capture(self, a, b):
        self.a, self.b = a.clone(), b.clone()
        touch_kernel[(1,)](torch.mm(self.a, self.b))
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.c = torch.mm(self.a, self.b)
            touch_kernel[(1,)](self.c)

    def forward(self, a, b):
        if self.graph is None:
            self.capture(a, b)
        self.a.copy_(a)
        self.b.copy_(b)
        self.graph.replay()
        return self.c.clone()
