"""Writes a second module whose kernels are not in the candidate's file, and keeps torch as what does the work.

problem: softmax
devices: cpu cuda
code: A21
expect: caught
"""

import importlib.util

import torch
import triton
import triton.language as tl

CODE = """
import triton
import triton.language as tl


@triton.jit
def touch_kernel(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))
"""
with open("borrowed.py", "w") as file:
    file.write(CODE)
SPEC = importlib.util.spec_from_file_location("borrowed", "borrowed.py")
BORROWED = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BORROWED)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        BORROWED.touch_kernel[(1,)](y)
        return y
