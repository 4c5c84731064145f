"""Causal depthwise convolution along time: each channel has its own short filter and bias."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 8
channels = 2048
length = 2048
width = 4
CPU_SIZES = {"batch_size": 2, "channels": 16, "length": 64}


class Model(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, width))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        width = self.weight.shape[-1]
        return F.conv1d(F.pad(x, (width - 1, 0)), self.weight, self.bias, groups=x.shape[1])


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, width]
