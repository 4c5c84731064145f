"""Rotary position embedding of queries and keys, with tables of angles kept as buffers."""

import torch
import torch.nn as nn

batch_size = 8
heads = 16
length = 2048
features = 64
CPU_SIZES = {"batch_size": 2, "heads": 2, "length": 16, "features": 16}


class Model(nn.Module):
    def __init__(self, length, features, base):
        super().__init__()
        frequency = base ** (-torch.arange(0, features, 2) / features)
        angle = torch.arange(length)[:, None] * frequency[None, :]
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def rotate(self, x):
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * self.cosine - right * self.sine, right * self.cosine + left * self.sine), dim=-1)

    def forward(self, query, key):
        return self.rotate(query), self.rotate(key)


def get_inputs():
    return [torch.randn(batch_size, heads, length, features), torch.randn(batch_size, heads, length, features)]


def get_init_inputs():
    return [length, features, 10000.0]
