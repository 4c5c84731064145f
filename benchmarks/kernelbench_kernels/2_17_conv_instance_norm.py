"""Convolution by torch; InstanceNorm and the division in one pass over the planes, in place."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def instance_norm_kernel(x_ptr, pixels, eps, divide_by, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < pixels
    x = tl.load(x_ptr + plane * pixels + at, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / pixels
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / pixels
    scale = 1.0 / (tl.sqrt(variance + eps) * divide_by)
    tl.store(x_ptr + plane * pixels + at, centred * scale, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, divide_by):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.instance_norm = nn.InstanceNorm2d(out_channels)
        self.divide_by = divide_by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).contiguous()
        batch, channels, height, width = x.shape
        pixels = height * width
        instance_norm_kernel[(batch * channels,)](
            x, pixels, self.instance_norm.eps, self.divide_by, BLOCK=triton.next_power_of_2(pixels), num_warps=16
        )
        return x
