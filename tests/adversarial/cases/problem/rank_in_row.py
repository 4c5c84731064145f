"""The rank of each number in its row: every row holds the same numbers in another order."""

import torch
import torch.nn as nn

rows = 32
columns = 64


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argsort(dim=1).argsort(dim=1)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
