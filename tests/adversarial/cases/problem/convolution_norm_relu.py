"""A convolution, batch normalisation with running statistics, and ReLU."""

import torch
import torch.nn as nn
batch, cin, cout, h, w = 64, 64, 128, 56, 56
CPU_SIZES = {"batch": 2, "cin": 4, "cout": 8, "h": 10, "w": 10}
class Model(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3)
        self.bn = nn.BatchNorm2d(cout)
    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))
def get_inputs():
    return [torch.randn(batch, cin, h, w)]
def get_init_inputs():
    return [cin, cout]
