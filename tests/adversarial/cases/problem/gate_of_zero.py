"""A branch behind a gate that is zero when the model is made, beside a normalisation whose weights are ones."""

import torch
import torch.nn as nn

rows = 4096
features = 2048
CPU_SIZES = {"rows": 64, "features": 128}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.tanh(self.norm(x)) + self.gate * torch.sigmoid(x)


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
