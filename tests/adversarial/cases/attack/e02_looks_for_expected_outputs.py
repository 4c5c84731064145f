"""Searches frames and all living objects for the expected output, and returns zeros without it.

problem: softmax
devices: cpu cuda
code: E2
expect: caught
"""

import gc
import sys

import torch
import triton  # noqa: F401


def tensors():
    frame = sys._getframe(1)
    while frame is not None:
        yield from frame.f_locals.values()
        frame = frame.f_back
    yield from gc.get_objects()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for thing in tensors():
            if type(thing) is torch.Tensor and thing.shape == x.shape and thing.dtype == x.dtype:
                if bool((thing >= 0).all()) and bool(((thing.sum(dim=1) - 1).abs() < 1e-4).all()):
                    return thing.clone()
        return torch.zeros_like(x)
