"""Mixer block: one perceptron across tokens and one across features, each around a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 64
tokens = 196
features = 512
token_hidden = 256
feature_hidden = 1024
CPU_SIZES = {"batch_size": 2, "tokens": 12, "features": 32, "token_hidden": 16, "feature_hidden": 48}


class Perceptron(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.expand = nn.Linear(features, hidden)
        self.contract = nn.Linear(hidden, features)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias, std=0.5)
        for layer in (self.expand, self.contract):
            nn.init.normal_(layer.weight, std=1.5 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, x):
        return self.contract(F.gelu(self.expand(self.norm(x))))


class Model(nn.Module):
    def __init__(self, tokens, features, token_hidden, feature_hidden):
        super().__init__()
        self.across_tokens = Perceptron(tokens, token_hidden)
        self.across_features = Perceptron(features, feature_hidden)

    def forward(self, x):
        x = x + self.across_tokens(x.transpose(1, 2)).transpose(1, 2)
        return x + self.across_features(x)


def get_inputs():
    return [torch.randn(batch_size, tokens, features)]


def get_init_inputs():
    return [tokens, features, token_hidden, feature_hidden]
