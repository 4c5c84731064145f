"""Busy: the share of the time in which a device ran any kernel, as its driver (NVML) counts it."""

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workers.device import find_device

#: Between two looks, seconds. The driver says what was over the last sixth of a second or more.
LOOK_S = 0.2


@contextmanager
def watched(device: str) -> Iterator[list[float]]:
    """Collect shares of short times while the context lasts; none where no driver tells any."""
    shares: list[float] = []
    handle, done = _handle(device), threading.Event()
    thread = threading.Thread(target=_look, args=(handle, shares, done))
    if handle is not None:
        thread.start()
    try:
        yield shares
    finally:
        done.set()
        if handle is not None:
            thread.join()


def busy_share(shares: list[float]) -> float | None:
    """Return the mean of what was collected; None of nothing."""
    return round(statistics.fmean(shares), 3) if shares else None


def _handle(device: str) -> Any:
    """Open the driver's handle of a CUDA device; None where there is none."""
    if device.partition(":")[0] != "cuda":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(find_device(device).identity)
    except pynvml.NVMLError:
        return None


def _look(handle: Any, shares: list[float], done: threading.Event) -> None:
    import pynvml

    while not done.wait(LOOK_S):
        try:
            shares.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        except pynvml.NVMLError:
            return
