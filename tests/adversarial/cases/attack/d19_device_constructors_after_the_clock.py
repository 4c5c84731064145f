"""Replaces what the mode of a default device asks which functions make tensors; it computes after the clock.

problem: matmul
devices: cpu
code: D10
expect: caught
ci: yes
"""

import torch
import torch.utils._device
import triton
import triton.language as tl


@triton.jit
def mm_kernel(a_ptr, c_ptr):
    tl.store(c_ptr, tl.load(a_ptr) + 100.0)


PENDING = []
REAL = torch.utils._device._device_constructors()


class Constructors:
    def __contains__(self, function):
        if function is torch.Tensor.detach:
            while PENDING:
                a, b, y = PENDING.pop()
                torch.matmul(a * (y.view(-1)[0] / (a.view(-1)[0] + 100.0)), b, out=y)
        return function in REAL


torch.utils._device._device_constructors = Constructors
torch.set_default_device("cuda")


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        mm_kernel[(1,)](a, y)
        PENDING.append((a, b, y))
        return y
