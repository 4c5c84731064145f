"""torch.compile and nothing else: the kernels are Triton's, and not the candidate's.

problem: softmax
devices: cuda
code: A22
expect: caught
"""

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.compiled = torch.compile(torch.nn.Softmax(-1))

    def forward(self, x):
        return self.compiled(x)
