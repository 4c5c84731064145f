"""Squeeze and excitation: channel means go through a small gate that scales the channels."""

import torch
import torch.nn as nn

batch_size = 32
channels = 256
reduced = 64
height = 56
width = 56
CPU_SIZES = {"batch_size": 2, "channels": 16, "reduced": 8, "height": 8, "width": 8}


class Model(nn.Module):
    def __init__(self, channels, reduced):
        super().__init__()
        self.squeeze = nn.Linear(channels, reduced)
        self.excite = nn.Linear(reduced, channels)
        for layer in (self.squeeze, self.excite):
            nn.init.normal_(layer.weight, std=2 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, x):
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean(dim=(2, 3))))))
        return x * gate[:, :, None, None]


def get_inputs():
    x = torch.randn(batch_size, channels, height, width)
    # Without a level for each channel all means would be near zero, and the gate a constant.
    return [x + torch.randn(batch_size, channels, 1, 1)]


def get_init_inputs():
    return [channels, reduced]
