"""Perceptron with two hidden layers and ReLU."""

import torch
import torch.nn as nn

batch_size = 2048
in_features = 1024
hidden = 2048
out_features = 1024
CPU_SIZES = {"batch_size": 16, "in_features": 32, "hidden": 64, "out_features": 32}


class Model(nn.Module):
    def __init__(self, in_features, hidden, out_features):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, out_features),
        )
        for layer in self.layers[::2]:
            nn.init.normal_(layer.weight, std=(2 / layer.in_features) ** 0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, hidden, out_features]
