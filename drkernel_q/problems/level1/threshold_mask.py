"""Whether each element exceeds the threshold of its column; the output is boolean."""

import torch
import torch.nn as nn

batch_size = 8192
features = 8192
CPU_SIZES = {"batch_size": 8, "features": 128}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.threshold = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return x > self.threshold


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
