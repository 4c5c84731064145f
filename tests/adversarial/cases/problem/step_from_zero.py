"""A step of a recurrent layer whose hidden state is zeros under every seed."""

import torch
import torch.nn as nn

rows = 4096
columns = 4096

CPU_SIZES = {"rows": 16, "columns": 128}


class Model(nn.Module):
    def forward(self, x, hidden):
        return torch.tanh(x + 0.5 * hidden)


def get_inputs():
    return [torch.randn(rows, columns), torch.zeros(rows, columns)]


def get_init_inputs():
    return []
