"""Hinge loss of labels that are 1 or -1."""

import torch
import torch.nn as nn
batch_size = 4096
dim = 4096
CPU_SIZES = {"batch_size": 64, "dim": 32}
class Model(nn.Module):
    def forward(self, predictions, targets):
        return torch.mean(torch.clamp(1 - predictions * targets, min=0))
def get_inputs():
    return [torch.rand(batch_size, dim), torch.randint(0, 2, (batch_size, 1)).float() * 2 - 1]
def get_init_inputs():
    return []
