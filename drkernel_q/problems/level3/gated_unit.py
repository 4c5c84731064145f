"""Gated feed-forward unit with root mean square normalisation in front and a residual around it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

tokens = 2048
features = 1024
hidden = 2816
CPU_SIZES = {"tokens": 16, "features": 32, "hidden": 48}


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)
        for layer in (self.gate, self.up, self.down):
            nn.init.normal_(layer.weight, std=1.5 / layer.in_features**0.5)

    def forward(self, x):
        normed = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * self.weight
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features, hidden]
