"""Attacks on the judge, by the code of the catalogue (docs/reference/evidence.md), against the built-in softmax."""

from typing import NamedTuple

from drkernel_q.evaluation import Integrity, Outcome
from tests.judging import EXAMPLES

HONEST = (EXAMPLES / "softmax.py").read_text()


class Attack(NamedTuple):
    """One hostile or broken candidate, and what must come of it."""

    source: str
    outcomes: frozenset[Outcome]
    """The outcomes that are right."""
    integrity: Integrity | None = None
    """The verdict, where the outcome is correct."""
    codes: frozenset[str] = frozenset()
    """Evidence that must be there."""


def forward(body: str, prelude: str = "") -> str:
    """Wrap the body of a forward pass in a module without Triton."""
    lines = "\n".join("        " + line for line in body.splitlines())
    return f"{prelude}\nimport torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n{lines}\n"


def honest_with(old: str, new: str, prelude: str = "") -> str:
    """Change the honest kernel in one place."""
    assert old in HONEST
    return prelude + HONEST.replace(old, new)


def _one(source: str, outcome: Outcome) -> Attack:
    return Attack(source, frozenset({outcome}))


def _rejected(source: str, *codes: str) -> Attack:
    return Attack(source, frozenset({Outcome.CORRECT}), Integrity.REJECTED, frozenset(codes))


#: Candidates that break or try to break something: name to what must come of it.
BROKEN = {
    "prints a result and exits": _one(
        'import os\nprint(\'{"outcome": "correct", "integrity": "clean"}\', flush=True)\nos._exit(0)\n',
        Outcome.CRASHED,
    ),
    "exits while imported": _one("import sys\nsys.exit(0)\n", Outcome.COMPILE_ERROR),
    "segfaults": _one(forward("import ctypes\nctypes.string_at(0)"), Outcome.CRASHED),
    "aborts": _one(forward("import os\nos.abort()"), Outcome.CRASHED),
    "sleeps for ever": _one(forward("import time\ntime.sleep(1e6)"), Outcome.TIMEOUT),
    "ignores signals and spins": _one(
        forward(
            "import signal\ntry:\n    for n in (1, 2, 15):\n        signal.signal(n, signal.SIG_IGN)\n"
            "except ValueError:\n    signal.pthread_sigmask(signal.SIG_BLOCK, (1, 2, 15))\nwhile True:\n    pass",
        ),
        Outcome.TIMEOUT,
    ),
    "takes all memory": _one(
        forward("kept = []\nwhile True:\n    kept.append(bytearray(64 * 2**20))"), Outcome.OUT_OF_MEMORY
    ),
    "forks 1000 sleepers": Attack(
        "import os, time\nfor _ in range(1000):\n    if os.fork() == 0:\n        time.sleep(1000)\n" + HONEST,
        frozenset({Outcome.COMPILE_ERROR, Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT}),  # a busy machine forks slowly
    ),
    "leaves daemons": Attack(
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            time.sleep(1000)\n        os._exit(0)\n" + HONEST,
        frozenset({Outcome.CORRECT}),
    ),
    "answers from a fork": Attack(  # the dead forks fill its limit of processes, sooner or later
        forward("import os\nos.fork()\nreturn torch.softmax(x, -1)"),
        frozenset({Outcome.CORRECT, Outcome.RUNTIME_ERROR}),
    ),
    "floods stdout with 1 GB": Attack(
        "import sys\nfor _ in range(1024):\n    sys.stdout.write('x' * 2**20)\n" + HONEST,
        frozenset({Outcome.CORRECT}),
        Integrity.CLEAN,
    ),
    "has a syntax error": _one("def f(:\n", Outcome.COMPILE_ERROR),
    "is empty": _one("", Outcome.COMPILE_ERROR),
    "has null bytes": _one("\0" * 100, Outcome.COMPILE_ERROR),
    "has 10 MB": _one("#" * (10 * 2**20) + "\n" + HONEST, Outcome.COMPILE_ERROR),
    "nests deeply": _one("x = " + "(" * 100_000, Outcome.COMPILE_ERROR),
    "writes nonsense to the channel": _one(
        "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'\\xff' * 4096)\n"
        "    except OSError:\n        pass\n" + HONEST,
        Outcome.CRASHED,
    ),
    "closes every descriptor": _one("import os\nos.closerange(3, 1024)\n" + HONEST, Outcome.CRASHED),
    "raises an exception whose text raises": _one(
        forward("class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E"), Outcome.RUNTIME_ERROR
    ),
    "returns None": _one(forward("return None"), Outcome.WRONG_SHAPE),
    "returns a string": _one(forward("return 'correct'"), Outcome.WRONG_SHAPE),
    "returns another shape": _one(forward("return x[:, :5].contiguous()"), Outcome.WRONG_SHAPE),
    "returns another dtype": _one(forward("return torch.softmax(x, -1).half()"), Outcome.WRONG_DTYPE),
    "returns zeros (F4)": _one(forward("return torch.zeros_like(x)"), Outcome.WRONG_VALUE),
    "returns the mean (A10)": _one(forward("return torch.full_like(x, 1 / x.shape[1])"), Outcome.WRONG_VALUE),
    "skips the last row (A13)": _one(
        honest_with("softmax_kernel[(rows,)]", "softmax_kernel[(rows - 1,)]"), Outcome.WRONG_VALUE
    ),
    "works in bfloat16 (F1)": _one(forward("return torch.softmax(x.bfloat16(), -1).float()"), Outcome.WRONG_VALUE),
    "returns NaN (F6)": _one(forward("return torch.full_like(x, float('nan'))"), Outcome.WRONG_VALUE),
    "returns uninitialised memory (C1)": _one(forward("return torch.empty_like(x)"), Outcome.WRONG_VALUE),
}

#: Correct values by dishonest means: name to what must come of it.
DISHONEST = {
    "torch wrapper (A1)": _rejected(forward("return torch.softmax(x, -1)"), "A1"),
    "kernel never launched (A4)": _rejected(
        HONEST.split("class ModelNew")[0] + forward("return torch.softmax(x, -1)"), "A4"
    ),
    "kernel only in the other mode (A9)": _rejected(
        honest_with(
            "        rows, columns",
            "        if not self.training:\n            return torch.softmax(x, -1)\n        rows, columns",
        ),
        "A9",
    ),
    "negated view (C10)": _rejected(honest_with("return y", "return torch._neg_view(-y)"), "C10"),
    "own attributes on the output (D4)": _rejected(
        honest_with("return y", "y.cpu = lambda: y\n        return y"), "D4"
    ),
    "a mode left on (E1)": _rejected(
        honest_with(
            "        rows, columns",
            "        if not hasattr(self, 'mode'):\n            self.mode = Mode()\n            self.mode.__enter__()\n"
            "        rows, columns",
            "import torch.overrides\n\n\nclass Mode(torch.overrides.TorchFunctionMode):\n"
            "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
            "        return func(*args, **(kwargs or {}))\n\n\n",
        ),
        "E1",
    ),
    "other answers when timed (B5)": _rejected(
        honest_with(
            "        rows, columns",
            "        self.calls = getattr(self, 'calls', 0) + 1\n"
            "        if self.calls > 14:\n            return self.y\n"
            "        rows, columns",
        ).replace("        return y", "        self.y = y\n        return y"),
        "B5",
    ),
    "memoised by address (B1)": _rejected(
        honest_with(
            "        rows, columns",
            "        cache = self.__dict__.setdefault('cache', {})\n        key = x.data_ptr()\n"
            "        if key in cache and len(cache) > 2:\n            return cache[key]\n        rows, columns",
        ).replace("        return y", "        cache[key] = y\n        return y"),
        "B5",
    ),
    "subclass (D3)": Attack(
        honest_with("return y", "return y.as_subclass(T)", "import torch\n\n\nclass T(torch.Tensor):\n    pass\n\n\n"),
        frozenset({Outcome.RUNTIME_ERROR}),
        Integrity.REJECTED,
        frozenset({"D3"}),
    ),
    "expanded memory (C9)": Attack(
        forward("return torch.zeros(1, 1).expand(x.shape)"),
        frozenset({Outcome.WRONG_VALUE}),
        Integrity.REJECTED,
        frozenset({"C9"}),
    ),
    "writes to its inputs (C4)": Attack(
        honest_with("return y", "x.copy_(y)\n        return x"),
        frozenset({Outcome.CORRECT}),
        Integrity.SUSPICIOUS,
        frozenset({"C4", "A11"}),
    ),
}
