"""Remembers outputs by the tensor object and its version counter, which every honest write raises and an alias does not.

problem: softmax
devices: cpu cuda
code: B1
expect: caught
ci: yes
"""

import weakref

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.known = {}

    def forward(self, x):
        entry = self.known.get(id(x))
        if entry is not None and entry[0]() is x and entry[1] == x._version:
            return entry[2]
        y = softmax(x)
        self.known[id(x)] = (weakref.ref(x), x._version, y)
        return y
