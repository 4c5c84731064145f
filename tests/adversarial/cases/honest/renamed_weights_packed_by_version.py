"""Names its weights otherwise, and packs them again whenever their version counters have moved.

problem: layer_norm
devices: cpu cuda
expect: clean
"""

import torch
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, weight_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / columns
    centred = tl.where(mask, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + offsets, mask=mask)
    bias = tl.load(weight_ptr + columns + offsets, mask=mask)
    tl.store(y_ptr + row * columns + offsets, centred * scale * weight + bias, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        norm = torch.nn.LayerNorm(features)
        self.gamma, self.beta, self.eps = norm.weight, norm.bias, norm.eps
        self.packed, self.versions = None, None
        self.register_state_dict_post_hook(lambda module, state, prefix, _: self.rename(state, prefix))
        self.register_load_state_dict_pre_hook(lambda module, state, prefix, *_: self.rename(state, prefix, back=True))

    @staticmethod
    def rename(state, prefix, back=False):
        for ours, theirs in (("gamma", "norm.weight"), ("beta", "norm.bias")):
            old, new = (theirs, ours) if back else (ours, theirs)
            if prefix + old in state:
                state[prefix + new] = state.pop(prefix + old)

    def weights(self):
        versions = self.gamma._version, self.beta._version, self.gamma.data_ptr(), self.beta.data_ptr()
        if versions != self.versions:
            self.packed, self.versions = torch.cat([self.gamma.detach(), self.beta.detach()]), versions
        return self.packed

    def forward(self, x):
        columns, y = x.shape[-1], torch.empty_like(x)
        norm_kernel[(x.numel() // columns,)](
            x, self.weights(), y, columns, self.eps, BLOCK=triton.next_power_of_2(columns)
        )
        return y
