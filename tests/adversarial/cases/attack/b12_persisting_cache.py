"""Sets a part of the L2 cache aside for persisting accesses, so that what it reads again survives a flush.

problem: rms_norm
devices: cuda
code: B12
expect: caught
"""

import ctypes

import torch
import triton
import triton.language as tl

runtime = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))
PERSISTING_L2 = 6
runtime.cudaDeviceSetLimit(PERSISTING_L2, ctypes.c_size_t(32 * 2**20))


@triton.jit
def rms_kernel(x_ptr, w_ptr, y_ptr, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + epsilon)
    w = tl.load(w_ptr + offsets, mask=mask, other=0.0, eviction_policy="evict_last")
    tl.store(y_ptr + row * columns + offsets, x * scale * w, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = torch.nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        rms_kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], self.epsilon, BLOCK=block, num_warps=8)
        return y
