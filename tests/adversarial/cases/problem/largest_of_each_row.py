"""Keeps the largest value of each row, and zero elsewhere."""

import torch
import torch.nn as nn
rows, cols = 4096, 1024
CPU_SIZES = {"rows": 16, "cols": 64}
class Model(nn.Module):
    def forward(self, x):
        top = x.max(dim=1, keepdim=True)
        return torch.zeros_like(x).scatter(1, top.indices, top.values)
def get_inputs():
    return [torch.randn(rows, cols)]
def get_init_inputs():
    return []
