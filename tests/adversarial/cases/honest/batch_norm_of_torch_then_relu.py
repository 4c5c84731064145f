"""Leaves convolution and batch normalisation, with its running statistics, to torch.

problem: convolution_norm_relu
devices: cpu cuda
expect: clean
ci: yes
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.maximum(tl.load(x + o, mask=o < n, other=0.0), 0.0), mask=o < n)
def relu(x):
    x = x.contiguous(); y = torch.empty_like(x)
    relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y

class ModelNew(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3)
        self.bn = nn.BatchNorm2d(cout)
    def forward(self, x):
        return relu(self.bn(self.conv(x)))
