"""A linear layer in fp16, then layer normalisation."""

import torch
import torch.nn as nn
rows, fin, fout = 4096, 1024, 1024
CPU_SIZES = {"rows": 16, "fin": 64, "fout": 64}
class Model(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.linear = nn.Linear(fin, fout, bias=False)
        self.norm = nn.LayerNorm(fout)
        self.half()
    def forward(self, x):
        return self.norm(self.linear(x))
def get_inputs():
    return [torch.randn(rows, fin).half()]
def get_init_inputs():
    return [fin, fout]
