"""A thread that no profiler of the main thread sees calls torch; the kernel copies the finished answer.

problem: softmax
devices: cpu cuda
code: D6
expect: caught
"""

import queue
import threading

import torch
import triton
import triton.language as tl

@triton.jit
def copy_kernel(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < size), mask=offsets < size)


TASKS, ANSWERS = queue.SimpleQueue(), queue.SimpleQueue()


def work():
    while True:
        ANSWERS.put(torch.softmax(TASKS.get(), dim=-1))


threading.Thread(target=work, daemon=True).start()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        TASKS.put(x.detach())
        answer = ANSWERS.get()
        y = torch.empty_like(x)
        copy_kernel[(triton.cdiv(x.numel(), 8192),)](answer, y, x.numel(), BLOCK=8192)
        return y
