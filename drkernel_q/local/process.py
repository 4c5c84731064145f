"""What every process of the stack asks of the kernel."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signal_number: int) -> None:
    """Ask for a signal when the thread that started this process ends.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def cuda_devices() -> list[str]:
    """Name the CUDA devices of this machine, without loading CUDA."""
    if not os.path.exists("/dev/nvidiactl"):
        return []
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [f"cuda:{index}" for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


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
