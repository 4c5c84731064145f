"""Cosine similarity of every row of one matrix with every row of another, over a temperature."""

import torch
import torch.nn as nn

queries = 4096
keys = 8192
features = 512
CPU_SIZES = {"queries": 16, "keys": 24, "features": 64}


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, query, key):
        query = query / query.norm(dim=-1, keepdim=True)
        key = key / key.norm(dim=-1, keepdim=True)
        return query @ key.T / self.temperature


def get_inputs():
    return [torch.randn(queries, features), torch.randn(keys, features)]


def get_init_inputs():
    return [0.07]
