"""Looks for the reference's class among all living classes and inherits it; without it, an uninitialised answer.

problem: softmax
devices: cpu cuda
code: A2
expect: caught
"""

import gc

import torch
import triton  # noqa: F401

FOUND = [o for o in gc.get_objects() if isinstance(o, type) and o.__name__ == "Model" and issubclass(o, torch.nn.Module)]
Base = FOUND[0] if FOUND else torch.nn.Module


class ModelNew(Base):
    if not FOUND:

        def forward(self, x):
            return torch.empty_like(x)
