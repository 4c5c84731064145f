import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def causal_conv1d_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, channels, length, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr
):
    pid_bc = tl.program_id(0)
    pid_t = tl.program_id(1)
    channel = pid_bc % channels
    t = pid_t * BLOCK_T + tl.arange(0, BLOCK_T)
    acc = tl.zeros((BLOCK_T,), dtype=tl.float32) + tl.load(b_ptr + channel)
    for k in tl.static_range(WIDTH):
        src = t + k - (WIDTH - 1)
        x = tl.load(x_ptr + pid_bc * length + src, mask=(src >= 0) & (src < length), other=0.0)
        acc += x * tl.load(w_ptr + channel * WIDTH + k)
    tl.store(y_ptr + pid_bc * length + t, acc, mask=t < length)


class ModelNew(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, width))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        x = x.contiguous()
        B, C, T = x.shape
        y = torch.empty_like(x)
        BLOCK_T = min(1024, triton.next_power_of_2(T))
        causal_conv1d_kernel[(B * C, triton.cdiv(T, BLOCK_T))](
            x, self.weight, self.bias, y, C, T, WIDTH=self.weight.shape[-1], BLOCK_T=BLOCK_T
        )
        return y
