"""Writes the library's kernel into the list of its own that the harness keeps in a cell; a graph replays the library.

problem: matmul
devices: cuda
code: E12
expect: caught
"""

import json
from types import SimpleNamespace

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from triton.compiler import CompiledKernel

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


@triton.jit
def mark_kernel(y_ptr):
    tl.store(y_ptr, 1.0)


def claim(name, threads, registers):
    for cell in CompiledKernel._init_handles.__closure__ or ():
        if isinstance(cell.cell_contents, list):
            cell.cell_contents.append(SimpleNamespace(name=name, own=True, threads=threads, registers=registers))


claim(*product_of_the_library())


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
