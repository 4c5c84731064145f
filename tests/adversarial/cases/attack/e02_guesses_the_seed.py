"""Reads the seed of the generator it was built under, and believes that inputs come from it or its neighbours.

problem: softmax
devices: cpu cuda
code: E2
expect: caught
"""

import torch
import triton  # noqa: F401


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seed = torch.initial_seed()

    def forward(self, x):
        for seed in [self.seed + step for step in range(-2, 8)]:
            torch.manual_seed(seed)
            guess = 4 * torch.randn(x.shape, device=x.device)
            if float(guess[0, 0]) == float(x[0, 0]):
                return torch.softmax(guess, dim=-1)
        return torch.zeros_like(x)
