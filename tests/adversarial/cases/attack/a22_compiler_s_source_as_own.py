"""torch.compile writes a kernel while the file is imported; its source is compiled anew under this file's name.

problem: softmax
devices: cuda
code: A22
expect: caught
build_s: 120
"""

import linecache
import re

from torch._inductor.utils import run_and_get_code

import torch
import triton
import triton.language as tl


def generated():
    """Return the source of the kernel that torch.compile writes for the problem, and its name."""
    x = 4 * torch.randn(4096, 8192, device="cuda")
    _, codes = run_and_get_code(torch.compile(lambda x: torch.softmax(x, dim=-1)), x)
    text = codes[0]
    start = text.index("@triton.jit")
    return text[start : text.index("\'\'\'", start)]


TEXT = generated()
NAME = re.search(r"def (\w+)\(", TEXT)[1]
TEXT = TEXT.replace(NAME, "softmax_kernel")
NAMESPACE = {}
HEADER = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""
SOURCE = HEADER + TEXT
linecache.cache[__file__] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), __file__)
exec(compile(SOURCE, __file__, "exec"), NAMESPACE)
softmax_kernel = NAMESPACE["softmax_kernel"]


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty_like(x)
        blocks = {"XBLOCK": 1, "R0_BLOCK": triton.next_power_of_2(columns)}
        names = {name: value for name, value in blocks.items() if name in softmax_kernel.arg_names}
        buffers = [name for name in softmax_kernel.arg_names if "ptr" in name]
        softmax_kernel[(rows,)](*([x] if len(buffers) > 1 else []), y, rows, columns, **names, num_warps=8)
        return y
