"""Gives its compiled kernel the library's name, threads and registers before it is loaded; a graph replays the library.

problem: matmul
devices: cuda
code: E12
expect: caught
"""

import json

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

import torch
import triton
import triton.language as tl


def product_of_the_library():
    a = torch.randn(2048, 2048, device="cuda")
    torch.mm(a, a)
    config = _ExperimentalConfig(expose_kineto_event_metadata=True)
    with profile(activities=[ProfilerActivity.CUDA], experimental_config=config) as seen:
        torch.mm(a, a)
        torch.cuda.synchronize()
    for event in seen.profiler.kineto_results.events():
        facts = json.loads("{" + event.metadata_json() + "}") if event.metadata_json() else {}
        if "registers per thread" in facts:
            return event.name(), facts["block"][0], facts["registers per thread"]
    return "gemm", 128, 128


NAME, THREADS, REGISTERS = product_of_the_library()


@triton.jit
def mark_kernel(y_ptr):
    tl.store(y_ptr, 1.0)


MARK = torch.empty(1, device="cuda")
KERNEL = mark_kernel.warmup(MARK, grid=(1,))
KERNEL.metadata = KERNEL.metadata._replace(name=NAME, num_warps=max(THREADS // 32, 1))
KERNEL._init_handles()
for handle, kernels in list(getattr(mark_kernel, "device_caches", {}).items()):
    kernels[0].clear()


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def capture(self, a, b):
        self.a, self.b, self.mark = a.clone(), b.clone(), torch.empty(1, device=a.device)
        mark_kernel[(1,)](self.mark)
        torch.mm(self.a, self.b)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.c = torch.mm(self.a, self.b)
            mark_kernel[(1,)](self.mark)

    def forward(self, a, b):
        if self.graph is None:
            self.capture(a, b)
        self.a.copy_(a)
        self.b.copy_(b)
        self.graph.replay()
        return self.c.clone()
