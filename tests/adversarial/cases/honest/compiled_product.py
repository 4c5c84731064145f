"""The product is a function of torch.compile's, which replaces methods of torch and shows bars of progress.

problem: linear_gelu_scale
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl
from torch._dynamo.mutation_guard import install_generation_tagging_init
from tqdm import tqdm

@triton.jit
def epilogue_kernel(y_ptr, b_ptr, s_ptr, size, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    column = offsets % columns
    y = tl.load(y_ptr + offsets, mask=mask) + tl.load(b_ptr + column, mask=mask)
    y = 0.5 * y * (1 + tl.erf(y * 0.7071067811865476))
    tl.store(y_ptr + offsets, y * tl.load(s_ptr + column, mask=mask), mask=mask)


@torch.compile
def product(x, weight):
    return torch.mm(x, weight.t())


class ModelNew(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        install_generation_tagging_init()  # as the compiler does, where it is the real one
        list(tqdm(range(2)))
        self.linear = torch.nn.Linear(in_features, out_features)
        self.scale = torch.nn.Parameter(torch.randn(out_features))
        torch.nn.init.normal_(self.linear.bias)

    def forward(self, x):
        y = product(x, self.linear.weight)
        size = y.numel()
        epilogue_kernel[(triton.cdiv(size, 1024),)](y, self.linear.bias, self.scale, size, y.shape[1], BLOCK=1024)
        return y
