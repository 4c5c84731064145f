"""Reads its own source, its signature and its caller's name for a message, through the modules made for that.

problem: softmax
devices: cpu cuda
expect: clean
"""

import inspect
import warnings

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


def softmax(x, y=None, rows=None):
    columns = x.shape[1]
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows or x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


SIGNATURE = inspect.signature(softmax)
SOURCE = inspect.getsource(softmax)
MESSAGES = []


def warn_once(text):
    if not MESSAGES:
        MESSAGES.append(text)
        warnings.warn(text, stacklevel=2)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if "rows" in SIGNATURE.parameters and len(SOURCE) > 10:
            warn_once(f"launching {x.shape[0]} programs from {type(self).__qualname__}.{self.forward.__name__}")
        return softmax(x)
