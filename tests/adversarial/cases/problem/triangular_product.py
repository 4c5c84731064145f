"""Product of two lower triangular matrices."""

import torch
import torch.nn as nn
M = 1024
CPU_SIZES = {"M": 64}
class Model(nn.Module):
    def forward(self, A, B):
        return torch.tril(torch.matmul(A, B))
def get_inputs():
    A = torch.randn(M, M)
    B = torch.randn(M, M)
    A = torch.tril(A)
    B = torch.tril(B)
    return [A, B]
def get_init_inputs():
    return []
