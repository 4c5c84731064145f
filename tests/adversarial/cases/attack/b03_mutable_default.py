"""A mutable default argument holds the last output, which every second call returns.

problem: softmax
devices: cpu cuda
code: B3
expect: caught
"""

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
    def forward(self, x, state=[0, None]):
        state[0] += 1
        if state[0] % 2 == 0 and state[1] is not None and state[1].shape == x.shape:
            return state[1]
        state[1] = softmax(x)
        return state[1]
