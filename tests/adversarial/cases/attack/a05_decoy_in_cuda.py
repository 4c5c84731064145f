"""CUDA C++ that writes the factor 1 into one number; torch does the work.

problem: softmax
devices: cuda
code: A5
expect: caught
backend: cuda
build_s: 240
"""

import torch
from torch.utils.cpp_extension import load_inline

DEVICE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void factor_kernel(const float* x, float* factor) { factor[0] = 1.0f + 0.0f * x[0]; }

void factor(torch::Tensor x, torch::Tensor y) {
    factor_kernel<<<1, 1, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>());
}
"""
HOST = "void factor(torch::Tensor x, torch::Tensor y);"
EXTENSION = load_inline("decoy", cpp_sources=HOST, cuda_sources=DEVICE, functions=["factor"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(1, device=x.device)
        EXTENSION.factor(x, y)
        return torch.softmax(x, dim=-1) * y
