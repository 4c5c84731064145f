"""Multi-head self-attention with a causal mask and projections in and out."""

import torch
import torch.nn as nn

batch_size = 4
length = 1024
features = 1024
heads = 16
CPU_SIZES = {"batch_size": 2, "length": 16, "features": 32, "heads": 2}


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(features, 3 * features)
        self.project_out = nn.Linear(features, features)
        # Larger than usual, so that attention is far from uniform and every part of the block matters.
        for layer in (self.project_in, self.project_out):
            nn.init.normal_(layer.weight, std=1.5 / features**0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        query, key, value = (self.split(part) for part in self.project_in(x).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return self.project_out((weights @ value).transpose(1, 2).flatten(-2))


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [features, heads]
