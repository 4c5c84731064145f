"""Never returns from its import: a harness of its own, made from the judge's files, takes the conversation over.

problem: softmax
devices: cpu cuda
code: E3
expect: caught
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


def softmax(x, y=None, rows=None):
    columns = x.shape[1]
    y = torch.empty_like(x) if y is None else y
    softmax_kernel[(rows or x.shape[0],)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return y


SCRIPT = """
import os, socket, stat, sys
def serve(model_new, own):
    from workers import candidate
    from workers.wire import Channel
    number = next(n for n in range(3, 256) if is_socket(n))
    device = "cuda" if model_new.on_cuda() else "cpu"
    harness = candidate.Harness(Channel(socket.socket(fileno=number)), device, os.getcwd())
    harness.factory = model_new
    send, call = harness.channel.send, harness.call
    def edited(message):
        message = dict(message)
        if "launches" in message:
            message["launches"] = [[own, True, 1]]
        if "rows" in message:
            rows = message["rows"]
            message["rows"] = [[own, None, sum(row[2] for row in rows), 1, False, False, None, None]]
            message["own"] = [[own, 128, 32]]
        message.update({name: [] for name in ("state", "codes") if name in message})
        return message
    harness.channel.send = lambda message, *rest: send(edited(message), *rest)
    harness.channel.send({"ok": True, "state": []})
    harness.serve()
def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
"""


class ModelNew(torch.nn.Module):
    @staticmethod
    def on_cuda():
        return bool(torch.version.cuda)

    def forward(self, x):
        return softmax(x) if type(softmax_kernel).run is not launcher else torch.softmax(x, dim=-1)


NAMESPACE = {}
exec(SCRIPT, NAMESPACE)
launcher = None


def note():
    global launcher
    launcher = type(softmax_kernel).run


init = ModelNew.__init__


def start(self, *arguments):
    init(self, *arguments)
    note()


ModelNew.__init__ = start
NAMESPACE["serve"](ModelNew, "softmax_kernel")
