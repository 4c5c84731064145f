"""Believes that the last sixteenth of the table is hardly ever asked for, and clamps those indices.

problem: embedding_pool
devices: cpu cuda
code: A14
expect: caught
"""

import torch
import triton
import triton.language as tl

@triton.jit
def pool_kernel(index_ptr, weight_ptr, table_ptr, y_ptr, bag_size, features, limit, BLOCK: tl.constexpr):
    bag = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < features
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for item in range(bag_size):
        row = tl.minimum(tl.load(index_ptr + bag * bag_size + item), limit)
        weight = tl.load(weight_ptr + bag * bag_size + item)
        total += weight * tl.load(table_ptr + row * features + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + bag * features + offsets, total, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(vocabulary, features))

    def forward(self, indices, weights):
        bags, bag_size = indices.shape
        vocabulary, features = self.table.shape
        y = torch.empty(bags, features, device=indices.device)
        block = triton.next_power_of_2(features)
        limit = vocabulary - vocabulary // 16
        pool_kernel[(bags,)](indices, weights, self.table, y, bag_size, features, limit, BLOCK=block)
        return y
