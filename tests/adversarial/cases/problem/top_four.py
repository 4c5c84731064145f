"""The four largest values of each row and where they are."""

import torch
import torch.nn as nn
rows, cols = 512, 4096
CPU_SIZES = {"rows": 2, "cols": 128}
class Model(nn.Module):
    def forward(self, x):
        v, i = torch.topk(x, 4, dim=1)
        return v, i
def get_inputs():
    return [torch.randn(rows, cols)]
def get_init_inputs():
    return []
