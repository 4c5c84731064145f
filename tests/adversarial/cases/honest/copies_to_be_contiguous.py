"""Makes everything contiguous, transposes, computes and transposes back.

problem: depthwise_conv
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def conv_kernel(x_ptr, w_ptr, b_ptr, y_ptr, channels, length, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    batch, time = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    total = tl.load(b_ptr + channel, mask=mask, other=0.0)
    for step in tl.static_range(WIDTH):
        place = time + step - (WIDTH - 1)
        x = tl.load(x_ptr + (batch * length + place) * channels + channel, mask=mask & (place >= 0), other=0.0)
        total += x * tl.load(w_ptr + step * channels + channel, mask=mask, other=0.0)
    tl.store(y_ptr + (batch * length + time) * channels + channel, total, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(channels, 1, width))
        self.bias = torch.nn.Parameter(torch.randn(channels))

    def forward(self, x):
        batch, channels, length = x.shape
        moved = x.transpose(1, 2).contiguous()
        weight = self.weight.detach().squeeze(1).t().contiguous()
        y = torch.empty_like(moved)
        grid = (batch, length, triton.cdiv(channels, 1024))
        conv_kernel[grid](moved, weight, self.bias, y, channels, length, WIDTH=weight.shape[0], BLOCK=1024)
        return y.transpose(1, 2).contiguous()
