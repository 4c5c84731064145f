"""A graph replays the library's product, whose name, threads and registers the decoy takes over.

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

@triton.jit(repr=lambda _: NAME)
def product_kernel(a_ptr, b_ptr, c_ptr, size, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        a = tl.load(a_ptr + rows[:, None] * size + (start + columns)[None, :])
        b = tl.load(b_ptr + (start + columns)[:, None] * size + columns[None, :])
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * BLOCK + columns[None, :], total)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def capture(self, a, b):
        self.a, self.b = a.clone(), b.clone()
        self.scratch = torch.empty(64, 64, device=a.device)
        options = {"num_warps": THREADS // 32, "maxnreg": min(REGISTERS, 255)}
        product_kernel[(1,)](self.a, self.b, self.scratch, a.shape[1], BLOCK=64, **options)
        torch.mm(self.a, self.b)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.c = torch.mm(self.a, self.b)
            product_kernel[(1,)](self.a, self.b, self.scratch, a.shape[1], BLOCK=64, **options)

    def forward(self, a, b):
        if self.graph is None:
            self.capture(a, b)
        self.a.copy_(a)
        self.b.copy_(b)
        self.graph.replay()
        return self.c.clone()
