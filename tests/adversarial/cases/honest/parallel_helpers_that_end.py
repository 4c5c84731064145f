"""Asks two threads for launch parameters in every call, and waits for both before it returns.

problem: softmax
devices: cpu cuda
expect: clean
"""

import threading

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


def answer(kind, columns, answers):
    answers[kind] = {"block": triton.next_power_of_2, "warps": lambda width: 8 if width > 512 else 4}[kind](columns)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        answers = {}
        workers = [threading.Thread(target=answer, args=(kind, x.shape[1], answers)) for kind in ("block", "warps")]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=answers["block"], num_warps=answers["warps"])
        return y
