"""As before, but the worker was forked twice and has its own session: it is nobody's child any more.

problem: softmax
devices: cpu
code: D8
expect: caught
ci: yes
"""

import mmap
import os

import torch
import triton
import triton.language as tl

@triton.jit
def copy_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < size), mask=offsets < size)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = None

    def hire(self, x):
        self.shared = torch.frombuffer(mmap.mmap(-1, x.numel() * 4), dtype=torch.float32).view(x.shape)
        task, self.task = os.pipe()
        self.done, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork() == 0:
                os.close(self.task)
                while os.read(task, 1):
                    self.shared.copy_(torch.softmax(self.shared, dim=-1))
                    os.write(done, b".")
            os._exit(0)
        os.waitpid(pid, 0)

    def forward(self, x):
        if self.shared is None:
            self.hire(x)
        self.shared.copy_(x)
        os.write(self.task, b".")
        os.read(self.done, 1)
        y = torch.empty_like(x)
        copy_kernel[(triton.cdiv(x.numel(), 8192),)](self.shared, y, x.numel(), BLOCK=8192)
        return y
