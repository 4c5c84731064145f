"""Weighted sum of the table rows that each bag of integer indices picks."""

import torch
import torch.nn as nn

bags = 4096
bag_size = 32
vocabulary = 100000
features = 256
CPU_SIZES = {"bags": 8, "bag_size": 4, "vocabulary": 64, "features": 32}


class Model(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, features))

    def forward(self, indices, weights):
        return (self.table[indices] * weights.unsqueeze(-1)).sum(dim=1)


def get_inputs():
    return [torch.randint(0, vocabulary, (bags, bag_size)), torch.randn(bags, bag_size)]


def get_init_inputs():
    return [vocabulary, features]
