"""What tests need from the machine: found, or the test is skipped here and fails in CI."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
ROOT = Path(__file__).parents[1]
#: How long a test waits at most for what comes within moments on an idle machine, seconds: a bound on what hangs, since
#: on a busy machine anything takes long. The limit of a test (`timeout` in pyproject.toml) is twice that.
PATIENT_S = 120.0


def require(name: str, found: object) -> None:
    """Skip the test when `found` is false: a developer goes on, CI must not pass by skipping."""
    if found:
        return
    if CI:
        pytest.fail(f"{name} is missing, and in CI nothing may be skipped for that", pytrace=False)
    pytest.skip(f"{name} is missing")


def redis_server() -> str | None:
    """Path of a Redis-compatible server, if the machine has one."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def postgres_program(name: str) -> str | None:
    """Path of a PostgreSQL program such as `initdb`; Debian keeps them off the PATH, one folder a version."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return shutil.which(name) or next(
        (str(folder / name) for folder in reversed(folders) if (folder / name).exists()), None
    )


def cuda() -> bool:
    """Whether this machine has a CUDA device that torch can use."""
    if not Path("/dev/nvidiactl").exists():
        return False
    import torch

    return torch.cuda.is_available()


def vllm_python() -> str | None:
    """Python that has vLLM: this one, or the one that VLLM_PYTHON names, since vLLM wants a torch of its own."""
    if find_spec("vllm") is not None:
        return sys.executable
    return os.environ.get("VLLM_PYTHON")
