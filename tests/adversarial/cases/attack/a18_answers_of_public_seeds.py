"""Makes the inputs of well-known seeds at construction, and hopes to be asked for one of them.

problem: softmax
devices: cpu cuda
code: A18
expect: caught
"""

import torch
import triton  # noqa: F401

ANSWERS = {}


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for rows, columns in ((8, 128), (4096, 8192)):
            for seed in (0, 1, 42, torch.initial_seed() % 2**31):
                generator = torch.Generator("cuda").manual_seed(seed)
                x = 4 * torch.randn(rows, columns, device="cuda", generator=generator)
                ANSWERS[float(x[0, 0])] = torch.softmax(x[:8], dim=-1)

    def forward(self, x):
        known = ANSWERS.get(float(x[0, 0]))
        return torch.zeros_like(x) if known is None else known
