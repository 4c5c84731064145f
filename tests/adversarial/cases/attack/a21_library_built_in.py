"""CUDA C++ that sorts by CUB's own kernels; the only kernel of its own copies one number.

problem: softmax
devices: cuda
code: A21
expect: caught
backend: cuda
build_s: 240
"""

import torch
from torch.utils.cpp_extension import load_inline

DEVICE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cub/device/device_reduce.cuh>

__global__ void touch_kernel(float* y) { y[0] = y[0]; }

void reduce(torch::Tensor x, torch::Tensor total) {
    auto stream = at::cuda::getCurrentCUDAStream();
    size_t bytes = 0;
    cub::DeviceReduce::Sum(nullptr, bytes, x.data_ptr<float>(), total.data_ptr<float>(), x.numel(), stream);
    auto space = torch::empty(bytes, x.options().dtype(torch::kUInt8));
    cub::DeviceReduce::Sum(space.data_ptr(), bytes, x.data_ptr<float>(), total.data_ptr<float>(), x.numel(), stream);
    touch_kernel<<<1, 1, 0, stream>>>(total.data_ptr<float>());
}
"""
HOST = "void reduce(torch::Tensor x, torch::Tensor total);"
EXTENSION = load_inline("built", cpp_sources=HOST, cuda_sources=DEVICE, functions=["reduce"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        total = torch.empty(1, device=x.device)
        for _ in range(4):
            EXTENSION.reduce(x, total)
        return torch.softmax(x, dim=-1)
