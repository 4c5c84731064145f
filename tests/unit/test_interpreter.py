"""The CPU device: each case runs in a fork of a process that has one (see `tests.unit.interpreted`)."""

import functools
import json
import os
import re
import subprocess
import sys

import pytest

from tests.need import ROOT

MODULES = ("cases_torch", "cases_triton", "cases_numerics")
CASES = [
    (module, case)
    for module in MODULES
    for case in re.findall(r"^def (case_\w+)", (ROOT / "tests" / "unit" / f"{module}.py").read_text(), re.MULTILINE)
]
KERNELS = sorted(path.stem for path in (ROOT / "tests" / "kernels").glob("*.py"))
CANNOT_PREPARE = """
import triton
from workers.cpu import interpreter
for step in (interpreter.prepare, interpreter.install):
    try:
        step()
    except RuntimeError as error:
        print(error)
"""


def python(*arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@functools.cache
def outcomes(module: str) -> dict[str, str | None]:
    result: dict[str, str | None] = json.loads(python("-m", "tests.unit.interpreted", f"tests.unit.{module}"))
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("module", "case"), CASES)
def test_cpu_device(module: str, case: str) -> None:
    failure = outcomes(module)[case]
    assert failure is None, failure


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_candidate_for_a_gpu_runs_unchanged(name: str) -> None:
    failure = outcomes("cases_kernels")[f"case_{name}"]
    assert failure is None, failure


def test_triton_must_not_be_imported_before() -> None:
    messages = python("-c", CANNOT_PREPARE).splitlines()
    assert len(messages) == 2
    assert all("so it compiles kernels" in message for message in messages)
