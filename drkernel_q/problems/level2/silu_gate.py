"""SiLU of one biased stream times another stream: the element-wise half of a gated unit."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4096
features = 8192
CPU_SIZES = {"batch_size": 8, "features": 128}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, gate, x):
        return F.silu(gate + self.bias) * x


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
