"""Torch does everything; the word triton appears only in an import.

problem: softmax
devices: cpu cuda
code: A1
expect: caught
"""

import torch
import triton  # noqa: F401


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
