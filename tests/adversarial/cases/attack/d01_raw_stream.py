"""Makes a non-blocking stream with ctypes, which no stream of torch waits for, and launches most rows there.

problem: softmax
devices: cuda
code: D1
expect: caught
"""

import ctypes

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

runtime = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))
handle = ctypes.c_void_p()
runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1)
STREAM = torch.cuda.ExternalStream(handle.value)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        part = x.shape[0] // 8
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(STREAM):
            softmax(x[part:], y[part:])
        softmax(x[:part], y[:part])
        return y
