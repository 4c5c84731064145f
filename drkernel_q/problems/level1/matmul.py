"""Product of two matrices in fp32, with no dimension a power of two."""

import torch
import torch.nn as nn

rows = 4000
inner = 2040
columns = 4008
CPU_SIZES = {"rows": 40, "inner": 24, "columns": 56}


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(rows, inner), torch.randn(inner, columns)]


def get_init_inputs():
    return []
