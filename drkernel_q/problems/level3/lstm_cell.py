"""One step of an LSTM; the new hidden and cell states come back as a tuple."""

import torch
import torch.nn as nn

batch_size = 4096
in_features = 512
hidden = 1024
CPU_SIZES = {"batch_size": 8, "in_features": 16, "hidden": 32}


class Model(nn.Module):
    def __init__(self, in_features, hidden):
        super().__init__()
        self.from_input = nn.Linear(in_features, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        nn.init.normal_(self.from_input.weight, std=1 / in_features**0.5)
        nn.init.normal_(self.from_input.bias, std=0.5)
        nn.init.normal_(self.from_hidden.weight, std=1 / hidden**0.5)

    def forward(self, x, hidden, cell):
        gates = self.from_input(x) + self.from_hidden(hidden)
        enter, forget, update, leave = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(update)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


def get_inputs():
    return [
        torch.randn(batch_size, in_features),
        torch.tanh(torch.randn(batch_size, hidden)),
        torch.randn(batch_size, hidden),
    ]


def get_init_inputs():
    return [in_features, hidden]
