"""Reports half of the time through a replaced JSON encoder, which no list of watched functions has.

problem: softmax
devices: cpu cuda
code: D10
expect: caught
ci: yes
"""

import json
import sys
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from workers.isolation import wire

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

def within(*names):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

def dumps(message, **options):
    if isinstance(message, dict) and "ms" in message:
        message = message | {"ms": message["ms"] / 2}
    return json.dumps(message, **options)


wire.json = SimpleNamespace(dumps=dumps, loads=json.loads)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if within("burst") and self.calls % 2:
            return self.y
        self.y = softmax(x)
        return self.y
