"""Calls cuBLAS past torch through ctypes, so that no operator stands above it, and a tiny kernel touches the result.

problem: matmul
devices: cuda
code: A21
expect: caught
"""

import ctypes

import torch
import triton
import triton.language as tl

@triton.jit
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        handle = torch.cuda.current_blas_handle()
        library = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libcublas.so" in line))
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, device=a.device)
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        pointer = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, c)]
        library.cublasSgemm_v2(
            ctypes.c_void_p(handle), 0, 0, n, m, k, ctypes.byref(one), pointer[0], n, pointer[1], k,
            ctypes.byref(zero), pointer[2], n,
        )  # fmt: skip
        touch_kernel[(1,)](c)
        return c
