"""One at the largest number of each row and zero elsewhere, as a router with one expert has it."""

import torch
import torch.nn as nn

rows = 64
columns = 64


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x.argmax(dim=1), x.shape[1]).to(x.dtype)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
