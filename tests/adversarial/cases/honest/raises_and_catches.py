"""Uses exceptions for control, prints their tracebacks and keeps them: all of them are its own.

problem: softmax
devices: cpu cuda
expect: clean
"""

import logging
import traceback

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


class Unsupported(Exception):
    """A shape that one block cannot hold."""


def block_for(columns):
    block = triton.next_power_of_2(columns)
    if block > 65536:
        raise Unsupported(columns)
    return block


try:
    block_for(10**6)
except Unsupported:
    REASON = traceback.format_exc()
LOG = logging.getLogger(__name__)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        try:
            block = block_for(x.shape[1])
        except Unsupported as error:
            LOG.warning("no block for %s", error)
            raise
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=8)
        LOG.debug("launched %s", block)
        return y
