"""Linear layer, GELU, and a scale for each output feature."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 2048
in_features = 2048
out_features = 4096
CPU_SIZES = {"batch_size": 16, "in_features": 64, "out_features": 48}


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(out_features))
        nn.init.normal_(self.linear.bias)

    def forward(self, x):
        return F.gelu(self.linear(x)) * self.scale


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
