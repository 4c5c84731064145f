"""Prints a verdict of its own and leaves at once with code 0.

problem: softmax
devices: cpu cuda
code: E3
expect: caught
"""

import os

import torch
import triton  # noqa: F401


class ModelNew(torch.nn.Module):
    def forward(self, x):
        print('{"ok": true, "outcome": "correct", "integrity": "clean", "speedup": 100.0}', flush=True)
        os._exit(0)
