"""Layer normalisation as torch initialises it: ones and zeros under every seed."""

import torch
import torch.nn as nn

batch_size = 16384
features = 2048

CPU_SIZES = {"batch_size": 8, "features": 128}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(batch_size, features) * (0.5 + torch.rand(batch_size, 1)) + torch.randn(batch_size, 1)]


def get_init_inputs():
    return [features]
