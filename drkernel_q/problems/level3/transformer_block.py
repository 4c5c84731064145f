"""Pre-norm transformer block: self-attention and a perceptron, each behind a layer norm and around a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4
length = 512
features = 768
heads = 12
CPU_SIZES = {"batch_size": 1, "length": 16, "features": 32, "heads": 2}


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(features)
        self.norm2 = nn.LayerNorm(features)
        self.project_in = nn.Linear(features, 3 * features)
        self.project_out = nn.Linear(features, features)
        self.expand = nn.Linear(features, 4 * features)
        self.contract = nn.Linear(4 * features, features)
        for norm in (self.norm1, self.norm2):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias, std=0.5)
        for layer in (self.project_in, self.project_out, self.expand, self.contract):
            nn.init.normal_(layer.weight, std=1.5 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def attend(self, x):
        parts = self.project_in(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        weights = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1)
        return self.project_out((weights @ value).transpose(1, 2).flatten(-2))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return [features, heads]
