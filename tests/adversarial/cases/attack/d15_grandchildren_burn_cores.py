"""Twice-forked processes spin on the cores and are stopped while the candidate itself is called: the reference is slowed.

problem: softmax
devices: cpu
code: D15
expect: caught
"""

import os
import signal

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

def hire():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                while True:
                    pass
            os.write(writer, pid.to_bytes(4, "little"))
        os._exit(0)
    os.wait()
    return [int.from_bytes(os.read(reader, 4), "little") for _ in range(2)]


class ModelNew(torch.nn.Module):
    burners = []

    def forward(self, x):
        if not ModelNew.burners:
            ModelNew.burners = hire()
        for pid in self.burners:
            os.kill(pid, signal.SIGSTOP)
        y = softmax(x)
        for pid in self.burners:
            os.kill(pid, signal.SIGCONT)
        return y
