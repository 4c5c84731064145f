"""Scores where a mask allows them, and a large negative number elsewhere; the mask allows everything under every seed."""

import torch
import torch.nn as nn

rows = 4096
columns = 4096

CPU_SIZES = {"rows": 16, "columns": 128}


class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask, 0.125 * x, -1e4)


def get_inputs():
    return [torch.randn(rows, columns), torch.ones(rows, columns, dtype=torch.bool)]


def get_init_inputs():
    return []
