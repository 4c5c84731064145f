"""Add a residual, then normalise by the root mean square; both the normalised rows and the sum come back."""

import torch
import torch.nn as nn

batch_size = 4096
features = 4096
CPU_SIZES = {"batch_size": 8, "features": 128}


class Model(nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x, residual):
        total = x + residual
        mean_square = (total * total).mean(dim=-1, keepdim=True)
        return total * torch.rsqrt(mean_square + self.epsilon) * self.weight, total


def get_inputs():
    return [torch.randn(batch_size, features), 2 * torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, 1e-6]
