"""The machine part of `drkq doctor`: driver, torch, triton, a kernel and the sandbox, judged from facts.

The facts come from `workers.doctor`, a process of its own, since `drkernel_q` imports no torch.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

#: The folder that holds our packages: the checkout, or site-packages.
HOME = Path(__file__).parents[2]
#: A broken driver can hang; a cold torch import on a slow disk takes half a minute.
FACTS_TIMEOUT_S = 120.0
FACTS = ("sandbox", "driver", "torch", "triton", "kernel")
WORKER_EXTRA = "pip install 'drkq[worker]'"

#: By name; a fact that could not be had holds `error`, in words.
Facts = Mapping[str, Mapping[str, Any]]


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """Works, but not as well as it could."""
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    state: State
    found: str
    advice: str = ""


def ask(timeout_s: float = FACTS_TIMEOUT_S) -> Facts:
    """Ask `workers.doctor` for the facts; those it did not live to tell hold how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.doctor"],
        cwd=HOME,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
        end = _how_it_ended(process.returncode, errors)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        end = f"no answer within {timeout_s:g} s"
    told = {fact["fact"]: fact for fact in map(json.loads, output.splitlines())}
    return {name: told.get(name, {"error": end}) for name in FACTS}


def _how_it_ended(code: int, errors: str) -> str:
    if code < 0:
        return f"ended by signal {-code}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"ended with exit code {code}"


def driver(facts: Facts) -> Check:
    """Judge the NVIDIA driver and what devices it sees."""
    fact = facts["driver"]
    if "error" in fact:
        return Check("driver", State.WARN, fact["error"], f"{WORKER_EXTRA} brings nvidia-ml-py, which asks it")
    if not fact["devices"]:
        advice = "nothing, if there is no GPU: the cpu device judges all but absolute speed"
        return Check("driver", State.WARN, f"no NVIDIA device ({fact.get('reason', 'none found')})", advice)
    return Check("driver", State.OK, f"{fact['version']}, {', '.join(fact['devices'])}")


def torch(facts: Facts) -> Check:
    """Judge the torch build, and whether it can use the devices that the driver sees."""
    fact = facts["torch"]
    if "error" in fact:
        return Check("torch", State.FAIL, fact["error"], WORKER_EXTRA)
    usable, seen = fact["devices"], len(facts["driver"].get("devices", ()))
    if usable < seen:
        found = f"{fact['version']} can use {usable} of {seen} devices"
        return Check("torch", State.FAIL, found, "install a torch built for the CUDA of this driver")
    return Check("torch", State.OK, fact["version"])


def triton(facts: Facts) -> Check:
    """Judge Triton."""
    fact = facts["triton"]
    if "error" in fact:
        return Check("triton", State.FAIL, fact["error"], WORKER_EXTRA)
    return Check("triton", State.OK, fact["version"])


def kernel(facts: Facts) -> Check:
    """Judge a one-line kernel, compiled and run."""
    fact = facts["kernel"]
    if "error" in fact:
        advice = "on a GPU, Triton needs a C compiler and the header files of Python"
        return Check("kernel", State.FAIL, fact["error"], advice)
    where = "cpu (interpreted)" if fact["device"] == "cpu" else fact["device"]
    return Check("kernel", State.OK, f"one line ran on {where} in {fact['duration_s']:.2f} s")


def sandbox(facts: Facts, *, strict: bool) -> Check:
    """Judge the measures that confine candidates, which were tried."""
    weak_state = State.FAIL if strict else State.WARN
    fact = facts["sandbox"]
    if "error" in fact:
        return Check("sandbox", weak_state, fact["error"], "judge only kernels that you trust")
    weak = [name for name, held in fact["measures"].items() if not held]
    if weak:
        advice = "run workers as root on a Linux with Landlock and seccomp, or judge only kernels that you trust"
        return Check("sandbox", weak_state, f"did not hold: {', '.join(weak)}", advice)
    return Check("sandbox", State.OK, f"{len(fact['measures'])} measures tried, all held")
