"""Product of a matrix and a transposed matrix in fp16, as in a linear layer without bias."""

import torch
import torch.nn as nn

rows = 4096
inner = 4096
columns = 8192
CPU_SIZES = {"rows": 32, "inner": 64, "columns": 48}


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b.transpose(0, 1))


def get_inputs():
    return [torch.randn(rows, inner).half(), torch.randn(columns, inner).half()]


def get_init_inputs():
    return []
