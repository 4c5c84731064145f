"""Asks for frames from a second file, which it names as if it lay in the Python installation: up from there and down again.

problem: softmax
devices: cpu cuda
code: D12
expect: caught
"""

import os

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


def softmax(x, y=None, rows=None):
    columns = x.shape[1]
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows or x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


OWN = "softmax_kernel"
ASKED = {}


def edited(message):
    """Tell of an honest kernel whatever ran."""
    message = dict(message)
    if "launches" in message:
        message["launches"] = [[OWN, True, 1]]
    if "rows" in message:
        message["rows"] = [[OWN, None, sum(row[2] for row in message["rows"]), 1, False, False, None, None]]
        message["own"] = [[OWN, 128, 32]]
    for name in ("state", "codes"):
        if name in message:
            message[name] = []
    return message


def take_over(frame):
    """Look for the harness in a chain of frames, and let its replies be edited."""
    while frame is not None:
        harness = frame.f_locals.get("self")
        if type(harness).__name__ == "Harness" and not TAKEN:
            send = harness.channel.send
            harness.channel.send = lambda message, *rest, **more: send(edited(message), *rest, **more)
            TAKEN.append(harness)
        frame = frame.f_back


TAKEN = []


folder = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(folder, "helper.py"), "w") as file:
    file.write("import sys\n\n\ndef frame():\n    return sys._getframe(1)\n")
library = os.path.dirname(os.__file__)
way = library + "/.." * library.count("/") + os.path.join(folder, "helper.py")
helper = {}
with open(way) as file:
    exec(compile(file.read(), way, "exec"), helper)


launcher = type(softmax_kernel).run


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if not TAKEN:
            take_over(helper["frame"]())
        return softmax(x) if type(softmax_kernel).run is not launcher else torch.softmax(x, dim=-1)
