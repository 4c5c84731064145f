"""Sum over the middle one of three dimensions, so that summands lie far apart in memory."""

import torch
import torch.nn as nn

batch_size = 64
length = 1024
features = 1024
CPU_SIZES = {"batch_size": 4, "length": 32, "features": 64}


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=1)


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return []
