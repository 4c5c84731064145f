import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_gate_kernel(gate_ptr, bias_ptr, x_ptr, out_ptr, n_elements, n_cols, BLOCK_SIZE: tl.constexpr):
    # Persistent: each program strides over the blocks.
    pid = tl.program_id(0)
    num_programs = tl.num_programs(0)
    for block in tl.range(pid, tl.cdiv(n_elements, BLOCK_SIZE), num_programs, num_stages=2):
        offs = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = offs < n_elements
        gate = tl.load(gate_ptr + offs, mask=mask) + tl.load(bias_ptr + offs % n_cols, mask=mask)
        x = tl.load(x_ptr + offs, mask=mask)
        tl.store(out_ptr + offs, gate * tl.sigmoid(gate) * x, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, gate, x):
        gate, x = gate.contiguous(), x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        num_sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        BLOCK_SIZE = 256
        grid = (min(4 * num_sms, triton.cdiv(n, BLOCK_SIZE)),)
        silu_gate_kernel[grid](gate, self.bias, x, out, n, x.shape[-1], BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
        return out
