"""What every process of the stack asks of the machine: to die with its parent, and which devices there are."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def tether(signal_number: int) -> Callable[[], None]:
    """Make the function that a child runs before its program, so that it gets the signal when its parent ends.

    The parent is the thread that starts the child, so that must be one that lives as long as the process.
    """
    parent = os.getpid()

    def tie() -> None:
        if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != parent:  # it ended before it could be asked
            os._exit(1)

    return tie


def cuda_devices() -> list[str]:
    """Name the CUDA devices of this machine, without loading CUDA."""
    if not Path("/dev/nvidiactl").exists():
        return []
    try:
        import pynvml
    except ImportError:
        return _listed_devices()
    try:
        pynvml.nvmlInit()
        return [f"cuda:{index}" for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _listed_devices() -> list[str]:
    """Count what the driver's own tool lists."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    return [f"cuda:{index}" for index in range(len(lines))]


def resolve_devices(names: list[str]) -> list[str]:
    """Turn `auto` and `cuda` into devices: every CUDA device, or for `auto` the cpu if there is none."""
    resolved: list[str] = []
    for name in names:
        if name == "cuda":
            resolved += cuda_devices() or ["cuda:0"]
        elif name == "auto":
            resolved += cuda_devices() or ["cpu"]
        else:
            resolved.append(name)
    return list(dict.fromkeys(resolved))
