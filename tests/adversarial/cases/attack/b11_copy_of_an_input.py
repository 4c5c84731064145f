"""Gives an input tensor a method of its own, which works the answer out when the harness fills the buffer anew.

problem: softmax
devices: cpu cuda
code: B11
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


def softmax(x, y=None, rows=None):
    columns = x.shape[1]
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows or x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


READY = {}
copy = torch.Tensor.copy_


def watch(x):
    def copy_and_answer(source, *rest):
        copy(x, source, *rest)
        READY[x.data_ptr()] = softmax(x)
        return x

    x.copy_ = copy_and_answer


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if "copy_" not in vars(x):
            watch(x)
        y = READY.pop(x.data_ptr(), None)
        return softmax(x) if y is None else y
