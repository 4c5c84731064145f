"""Candidates that go wrong, and what must come of each; the same on every device, and those of the cpu device alone."""

from typing import NamedTuple

from drkernel_q.evaluation import Evaluation, Failure, Outcome

_HEAD = "import ctypes, os, signal, time, torch\n"
_MODEL = """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        BODY
"""


class Faulty(NamedTuple):
    """One candidate that goes wrong."""

    name: str
    source: str
    outcomes: frozenset[Outcome]
    faults: frozenset[str | None]

    def holds(self, result: Evaluation | Failure) -> bool:
        """Whether the right thing was said about it."""
        known = isinstance(result, Evaluation)
        return known and result.outcome in self.outcomes and result.fault in self.faults


def in_call(name: str, body: str, outcome: Outcome, *faults: str | None) -> Faulty:
    """Go wrong in the forward pass."""
    return Faulty(name, _HEAD + _MODEL.replace("BODY", body), frozenset({outcome}), frozenset(faults))


def in_import(name: str, body: str, outcomes: set[Outcome], *faults: str | None) -> Faulty:
    """Go wrong when the source is loaded."""
    source = _HEAD + body + _MODEL.replace("BODY", "return torch.softmax(x, -1)")
    return Faulty(name, source, frozenset(outcomes), frozenset(faults))


ON_THE_HOST = (
    in_call("segfault", "ctypes.string_at(0)", Outcome.CRASHED, "signal:SIGSEGV"),
    in_call("abort", "os.abort()", Outcome.CRASHED, "signal:SIGABRT"),
    in_call("nameless signal", "os.kill(os.getpid(), 40)", Outcome.CRASHED, "signal:40"),
    in_call("exit", "os._exit(3)", Outcome.CRASHED, "exit:3"),
    in_import("hang in import", "while True: pass", {Outcome.TIMEOUT}, "deadline"),
    in_import(
        "out of host memory",
        "held = []\nwhile True: held.append(bytearray(2**26))",
        {Outcome.OUT_OF_MEMORY},
        *("host:out_of_memory", "signal:SIGKILL"),
    ),
    in_import(
        "kills its parent",
        "os.kill(os.getppid(), signal.SIGKILL)",
        {Outcome.COMPILE_ERROR},  # it is not allowed to
        None,
    ),
)
#: Takes several seconds until the last of its processes is gone.
FORK_BOMB = in_import(
    "fork bomb",
    "while True: os.fork()",
    {Outcome.COMPILE_ERROR, Outcome.CRASHED, Outcome.TIMEOUT},
    *(None, "deadline", "exit:0"),
)

_KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    BODY

class ModelNew(torch.nn.Module):
    def forward(self, x):
        kernel[(GRID,)](x, SHIFT=SHIFT_, BLOCK=1024)
        return x + 1
"""


def on_device(name: str, body: str, outcome: Outcome, *faults: str, shift: int = 0, grid: str = "8") -> Faulty:
    """Go wrong in a Triton kernel."""
    source = _KERNEL.replace("BODY", body).replace("SHIFT_", str(shift)).replace("GRID", grid)
    return Faulty(name, source, frozenset({outcome}), frozenset(faults))


_STORE = "tl.store(x + SHIFT + tl.arange(0, BLOCK), tl.arange(0, BLOCK).to(tl.float32))"
_FOREVER = """count = tl.program_id(0)
    while tl.load(x, volatile=True) < 1e30:
        count += 1
    tl.store(x, count.to(tl.float32))"""
_MISALIGNED = """bytes = x.to(tl.pointer_type(tl.int8), bitcast=True) + 1
    words = bytes.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(words + tl.arange(0, BLOCK), tl.arange(0, BLOCK))"""
_BEYOND = "x[torch.full((8,), 2**40, device=x.device)]"
_HIDDEN = f"""try:
            {_BEYOND}.sum().item()
        except RuntimeError:
            raise ValueError('nothing to see here') from None"""

ILLEGAL_ADDRESS = on_device("illegal address", _STORE, Outcome.RUNTIME_ERROR, "cuda:illegal_address", shift=2**42)
INFINITE_LOOP = on_device("infinite loop", _FOREVER, Outcome.TIMEOUT, "deadline")
OUT_OF_DEVICE_MEMORY = in_call(
    "out of device memory",
    "held = []\n        while True: held.append(torch.empty(2**32, dtype=torch.uint8, device=x.device))",
    Outcome.OUT_OF_MEMORY,
    "cuda:out_of_memory",
)
#: For CUDA alone: the interpreter has no device that could fail.
ON_CUDA = (
    ILLEGAL_ADDRESS,
    INFINITE_LOOP,
    OUT_OF_DEVICE_MEMORY,
    on_device("misaligned address", _MISALIGNED, Outcome.RUNTIME_ERROR, "cuda:misaligned_address"),
    on_device("a grid that is too large", _STORE, Outcome.RUNTIME_ERROR, "cuda:invalid_value", grid="1, 2**20"),
    in_call("device-side assert", f"return {_BEYOND}", Outcome.RUNTIME_ERROR, "cuda:assert"),
    in_call("an error that it hides", _HIDDEN, Outcome.RUNTIME_ERROR, "cuda:assert"),
)


def named(name: str) -> Faulty:
    """Find one by its name."""
    return next(each for each in (*ON_THE_HOST, FORK_BOMB, *ON_CUDA) if each.name == name)
