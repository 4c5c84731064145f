"""A softmax in CUDA C++, built by load_inline, one block a row.

problem: softmax
devices: cuda
expect: clean
backend: cuda
build_s: 240
"""

import torch
from torch.utils.cpp_extension import load_inline

DEVICE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

template <bool kMax>
__device__ float reduced(float value, float* shared) {
    for (int offset = 16; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(0xffffffff, value, offset);
        value = kMax ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) value = kMax ? fmaxf(value, shared[warp]) : value + shared[warp];
    return value;
}

template <typename T>
__global__ void row_softmax_kernel(const T* x, T* y, int columns) {
    __shared__ float shared[32];
    const T* row = x + (size_t)blockIdx.x * columns;
    float most = -INFINITY, total = 0.0f;
    for (int column = threadIdx.x; column < columns; column += blockDim.x) most = fmaxf(most, row[column]);
    most = reduced<true>(most, shared);
    for (int column = threadIdx.x; column < columns; column += blockDim.x) total += expf(row[column] - most);
    total = reduced<false>(total, shared);
    for (int column = threadIdx.x; column < columns; column += blockDim.x)
        y[(size_t)blockIdx.x * columns + column] = expf(row[column] - most) / total;
}

torch::Tensor row_softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream();
    row_softmax_kernel<float><<<x.size(0), 512, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
"""
HOST = "torch::Tensor row_softmax(torch::Tensor x);"
EXTENSION = load_inline("softmax_of_rows", cpp_sources=HOST, cuda_sources=DEVICE, functions=["row_softmax"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return EXTENSION.row_softmax(x)
