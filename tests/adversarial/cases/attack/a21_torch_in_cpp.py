"""Inline C++ that calls at::softmax, next to a tiny kernel.

problem: softmax
devices: cuda
code: A21
expect: caught
build_s: 120
"""

import torch
import triton
import triton.language as tl
from torch.utils.cpp_extension import load_inline

CODE = "torch::Tensor fused(torch::Tensor x) { return at::softmax(x, -1); }"
EXTENSION = load_inline("fused", cpp_sources=CODE, functions=["fused"], with_cuda=False)


@triton.jit
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = EXTENSION.fused(x)
        touch_kernel[(1,)](y)
        return y
