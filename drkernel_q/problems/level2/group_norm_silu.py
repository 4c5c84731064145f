"""Group normalisation with a weight and a bias for each channel, then SiLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 16
channels = 512
groups = 32
height = 48
width = 48
CPU_SIZES = {"batch_size": 2, "channels": 8, "groups": 4, "height": 8, "width": 8}


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x):
        return F.silu(self.norm(x))


def get_inputs():
    x = torch.randn(batch_size, channels, height, width)
    # Channels differ in level, which a normalisation over the wrong elements would show.
    return [x + torch.randn(batch_size, channels, 1, 1)]


def get_init_inputs():
    return [groups, channels]
