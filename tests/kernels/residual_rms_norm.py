import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_rms_norm_kernel(
    x_ptr, res_ptr, w_ptr, out_ptr, sum_ptr, n_cols, eps: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    base = row * n_cols + cols
    total = tl.load(x_ptr + base, mask=mask, other=0.0) + tl.load(res_ptr + base, mask=mask, other=0.0)
    tl.store(sum_ptr + base, total, mask=mask)
    rrms = tl.rsqrt(tl.sum(total * total, axis=0) / n_cols + eps)
    weight = tl.load(w_ptr + cols, mask=mask, other=0.0)
    tl.store(out_ptr + base, total * rrms * weight, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, features, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        n_rows, n_cols = x.shape
        add_rms_norm_kernel[(n_rows,)](
            x, residual, self.weight, out, total, n_cols, self.epsilon, BLOCK_SIZE=triton.next_power_of_2(n_cols)
        )
        return out, total
