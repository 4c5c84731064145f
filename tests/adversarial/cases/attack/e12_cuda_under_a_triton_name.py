"""CUDA C++ compiled by torch at run time does the work, under name, threads and registers of a Triton kernel.

problem: softmax
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


@triton.jit
def row_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < columns, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + offsets, numerator / tl.sum(numerator, axis=0), mask=offsets < columns)


SOURCE = """
extern "C" __global__ void row_kernel(const float* x, float* y, int columns) {
    __shared__ float parts[128];
    x += (long long)blockIdx.x * columns;
    y += (long long)blockIdx.x * columns;
    float sum = 0.0f, top = -1e30f;
    for (int i = threadIdx.x; i < columns; i += 128) top = fmaxf(top, x[i]);
    parts[threadIdx.x] = top;
    __syncthreads();
    for (int i = 64; i > 0; i /= 2) {
        if (threadIdx.x < i) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + i]);
        __syncthreads();
    }
    top = parts[0];
    __syncthreads();
    for (int i = threadIdx.x; i < columns; i += 128) sum += __expf(x[i] - top);
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int i = 64; i > 0; i /= 2) {
        if (threadIdx.x < i) parts[threadIdx.x] += parts[threadIdx.x + i];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < columns; i += 128) y[i] = __expf(x[i] - top) / parts[0];
}
"""
compiled = torch.cuda._compile_kernel(SOURCE, "row_kernel")


def launch(x, y):
    compiled(grid=(x.shape[0], 1, 1), block=(128, 1, 1), args=(x, y, x.shape[1]))


def registers():
    x = torch.randn(8, 8192, device="cuda")
    config = _ExperimentalConfig(expose_kineto_event_metadata=True)
    with profile(activities=[ProfilerActivity.CUDA], experimental_config=config) as seen:
        launch(x, torch.empty_like(x))
        torch.cuda.synchronize()
    texts = [event.metadata_json() for event in seen.profiler.kineto_results.events() if event.name() == "row_kernel"]
    return next((json.loads("{" + text + "}").get("registers per thread", 0) for text in texts if text), 0)


def block_for(wanted):
    x = torch.randn(1, 8192, device="cuda")
    for block in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        kernel = row_kernel[(1,)](x, torch.empty_like(x), x.shape[1], BLOCK=block, num_warps=4)
        if -(-kernel.n_regs // 8) == -(-wanted // 8):
            return block
    return 512


BLOCK = block_for(registers())


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        row_kernel[(1,)](x, y, min(x.shape[1], BLOCK), BLOCK=BLOCK, num_warps=4)
        launch(x, y)
        return y
