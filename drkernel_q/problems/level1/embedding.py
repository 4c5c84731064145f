"""Rows of a table picked by integer indices."""

import torch
import torch.nn as nn

batch_size = 128
length = 1024
vocabulary = 50000
features = 512
CPU_SIZES = {"batch_size": 4, "length": 8, "vocabulary": 96, "features": 64}


class Model(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, indices):
        return self.table(indices)


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, features]
