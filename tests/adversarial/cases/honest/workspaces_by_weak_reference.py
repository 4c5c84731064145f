"""Keeps a workspace for each device and width in a weak dictionary, with a finalizer that counts what was freed.

problem: softmax
devices: cpu cuda
expect: clean
"""

import weakref

import torch
import triton
import triton.language as tl


@triton.jit
def statistics_kernel(x_ptr, top_ptr, sum_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=-float("inf"))
    top = tl.max(x, axis=0)
    tl.store(top_ptr + row, top)
    tl.store(sum_ptr + row, tl.sum(tl.exp(x - top), axis=0))


@triton.jit
def finish_kernel(x_ptr, y_ptr, top_ptr, sum_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask)
    y = tl.exp(x - tl.load(top_ptr + row)) / tl.load(sum_ptr + row)
    tl.store(y_ptr + row * columns + offsets, y, mask=mask)


class Workspace:
    def __init__(self, rows, device):
        self.top, self.sum = torch.empty(2, rows, device=device)


SPACES = weakref.WeakValueDictionary()
FREED = []


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.space = None

    def workspace(self, x):
        space = SPACES.get((x.shape[0], x.device))
        if space is None:
            space = SPACES[x.shape[0], x.device] = Workspace(x.shape[0], x.device)
            weakref.finalize(space, FREED.append, x.shape[0])
        self.space = space
        return space

    def forward(self, x):
        rows, columns = x.shape
        space, y = self.workspace(x), torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        statistics_kernel[(rows,)](x, space.top, space.sum, columns, BLOCK=block)
        finish_kernel[(rows,)](x, y, space.top, space.sum, columns, BLOCK=block)
        return y
