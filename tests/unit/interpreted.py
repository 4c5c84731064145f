"""Run test cases on a CPU device, which changes torch for its whole process and so cannot be made in pytest's own.

`python -m tests.unit.interpreted MODULE` makes the device and calls each `case_*` of MODULE in a fork; it prints a JSON
object that maps the case to its traceback, or to null.
"""

import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable

import torch

from workers.cpu import interpreter


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare two tensors; `torch.testing.assert_close` would import a second's worth of modules in each fork."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    worst = (actual.double() - expected.double()).abs().max().item()
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance), f"off by {worst}"


def raises(kind: type[BaseException], call: Callable[[], object]) -> str:
    """Return the text of the exception that `call` raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def outcome_in_fork(case: Callable[[], None]) -> str | None:
    """Run `case` in a fork, which shows that forks are CPU devices too; return its traceback if it failed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            warnings.simplefilter("error")
            torch.manual_seed(0)
            case()
        except BaseException:  # noqa: BLE001 - the fork must end here, and the parent reports
            text = traceback.format_exc()
        os.write(writer, text[-4000:].encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as report:
        text = report.read()
    status = os.waitpid(pid, 0)[1]
    return text or (f"wait status {status}" if status else None)


def main() -> None:
    interpreter.prepare()
    importlib.import_module("triton")
    interpreter.install()
    cases = vars(importlib.import_module(sys.argv[1]))
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads, so a fork would not be sound"
    json.dump({name: outcome_in_fork(case) for name, case in cases.items() if name.startswith("case_")}, sys.stdout)


if __name__ == "__main__":
    main()
