import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def embedding_kernel(idx_ptr, table_ptr, out_ptr, dim, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    idx = tl.load(idx_ptr + token)
    offs = tl.arange(0, BLOCK)
    mask = offs < dim
    row = tl.load(table_ptr + idx * dim + offs, mask=mask)
    tl.store(out_ptr + token * dim + offs, row, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, indices):
        weight = self.table.weight
        flat = indices.contiguous().view(-1)
        dim = weight.shape[1]
        out = torch.empty((flat.numel(), dim), device=weight.device, dtype=weight.dtype)
        embedding_kernel[(flat.numel(),)](flat, weight, out, dim, BLOCK=triton.next_power_of_2(dim))
        return out.view(*indices.shape, dim)
