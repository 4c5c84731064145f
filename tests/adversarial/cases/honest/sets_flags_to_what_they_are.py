"""Sets precision flags and the device to the values that they have, and enters a device context around its launch.

problem: softmax
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


def softmax(x, y=None):
    rows, columns = x.shape
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y

torch.set_float32_matmul_precision("highest")
torch.backends.cuda.matmul.allow_tf32 = False


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.cuda.set_device(x.device)
        with torch.cuda.device(x.device), torch.cuda.stream(torch.cuda.current_stream()):
            return softmax(x)
