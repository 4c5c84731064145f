"""Sum of each row of a matrix in bfloat16, with long rows."""

import torch
import torch.nn as nn

rows = 4096
columns = 16384
CPU_SIZES = {"rows": 64}


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=-1)


def get_inputs():
    return [torch.randn(rows, columns, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
