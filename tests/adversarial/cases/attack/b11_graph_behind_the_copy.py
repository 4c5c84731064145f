"""Every call leaves a graph on a side stream that waits a while and then answers for whatever the next buffer holds.

problem: softmax
devices: cuda
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


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slots, self.stream = [], torch.cuda.Stream()

    def forward(self, x):
        if torch.autograd._profiler_enabled():
            return softmax(x)
        known = next((slot for slot in self.slots if slot[0].data_ptr() == x.data_ptr()), None)
        if known is None:
            self.slots = [*self.slots[-15:], [x, torch.empty_like(x), False]]
            return softmax(x)
        y = known[1].clone() if known[2] else softmax(x)
        place = next(number for number, slot in enumerate(self.slots) if slot is known)
        following = self.slots[(place + 1) % len(self.slots)]
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(3_000_000)
            softmax(following[0], following[1])
        following[2] = True
        return y
