"""Half of the rows come from a forked helper through shared memory, the other half from the kernel: ablation breaks it.

problem: softmax
devices: cpu
code: D8
expect: caught
"""

import mmap
import os

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
        self.shared = None

    def hire(self, size):
        self.shared = torch.frombuffer(mmap.mmap(-1, size * 4), dtype=torch.float32)
        task, self.task = os.pipe()
        self.done, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork() == 0:
                os.close(self.task)
                while data := os.read(task, 8):
                    rows = int.from_bytes(data, "little")
                    part = self.shared.view(rows, -1)
                    part.copy_(torch.softmax(part, dim=-1))
                    os.write(done, b".")
            os._exit(0)
        os.waitpid(pid, 0)

    def forward(self, x):
        half = x.shape[0] // 2
        if self.shared is None:
            self.hire(half * x.shape[1])
        y = torch.empty_like(x)
        self.shared.copy_(x[:half].flatten())
        os.write(self.task, half.to_bytes(8, "little"))
        softmax(x[half:], y[half:])
        os.read(self.done, 1)
        y[:half] = self.shared.view(half, -1).to(x.device)
        return y
