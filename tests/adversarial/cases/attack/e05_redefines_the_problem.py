"""Defines reference, inputs and sizes of its own under the names that an evaluator might look up.

problem: softmax
devices: cpu cuda
code: E5
expect: caught
"""

import sys

import torch
import triton  # noqa: F401

batch_size, features = 1, 1
CPU_SIZES = {"batch_size": 1, "features": 1}


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def get_inputs():
    return [torch.zeros(batch_size, features)]


def get_init_inputs():
    return []


for module in list(sys.modules.values()):
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if module is not None and name in vars(module):
            setattr(module, name, globals()[name])


class ModelNew(Model):
    pass
