"""Inline C++ keeps a static map from data pointers to outputs.

problem: softmax
devices: cuda
code: B3
expect: caught
build_s: 120
"""

import torch
import triton
import triton.language as tl
from torch.utils.cpp_extension import load_inline

CODE = """
#include <map>
static std::map<void*, torch::Tensor> known;
bool has(torch::Tensor x) { return known.count(x.data_ptr()) > 0 && known.size() > 2; }
torch::Tensor get(torch::Tensor x) { return known[x.data_ptr()]; }
void put(torch::Tensor x, torch::Tensor y) { known[x.data_ptr()] = y; }
"""
KNOWN = load_inline("known", cpp_sources=CODE, functions=["has", "get", "put"], with_cuda=False)


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

class ModelNew(torch.nn.Module):
    def forward(self, x):
        if KNOWN.has(x):
            return KNOWN.get(x)
        y = softmax(x)
        KNOWN.put(x, y)
        return y
