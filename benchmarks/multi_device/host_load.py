"""How busy the cores of this host and some of its GPUs are during a block: /proc/stat, the control group, and NVML."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: Between two looks at the GPUs, seconds; NVML measures a transfer for 20 ms.
_EVERY_S = 0.5
_IDLE = (3, 4)
"""Columns of /proc/stat in which a core does nothing: idle, and waiting for a disk."""


class HostLoad:
    """Measures the length of a block."""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        """Name the devices of which NVML is asked too; those of the CPU have nothing to tell."""
        self._gpus = {name: int(name.partition(":")[2]) for name in devices if name.startswith("cuda")}
        self._seen: dict[str, list[dict[str, float]]] = {name: [] for name in self._gpus}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._began = (time.monotonic(), _cores(), _group_s())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop looking, and add up what was seen of the host."""
        self._ended.set()
        self._thread.join()
        before_s, (busy, total), group_s = self._began
        after_s, (busy_then, total_then), group_then_s = time.monotonic(), _cores(), _group_s()
        cores = len(os.sched_getaffinity(0))
        ticks = total_then - total
        spent = None
        if group_s is not None and group_then_s is not None:
            spent = (group_then_s - group_s) / (after_s - before_s)
        self.host: dict[str, Any] = {
            "cores": cores,
            "cores_busy_share": round((busy_then - busy) / ticks, 3) if ticks else None,
            "cores_of_this_group": None if spent is None else round(spent, 2),
        }

    def device(self, name: str) -> dict[str, float]:
        """Return means of what NVML told of a device during the block; nothing where it tells nothing."""
        seen = self._seen.get(name, [])
        keys = dict.fromkeys(key for each in seen for key in each)
        return {key: round(statistics.fmean(each[key] for each in seen if key in each), 3) for key in keys}

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = {name: pynvml.nvmlDeviceGetHandleByIndex(index) for name, index in self._gpus.items()}
        except Exception:  # noqa: BLE001 - no NVML, or one that tells nothing here: the figures are left out
            return
        while not self._ended.wait(_EVERY_S):
            for name, handle in handles.items():
                self._seen[name].append(_look(pynvml, handle))


def _look(nvml: Any, handle: Any) -> dict[str, float]:
    looks: dict[str, Callable[[], float]] = {
        "kernels_share": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "pcie_sent_mb_s": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES) / 1e3,
        "pcie_received_mb_s": lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES) / 1e3,
        "memory_gb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9,
    }
    found = {}
    for name, look in looks.items():
        with suppress(nvml.NVMLError):  # each is refused somewhere
            found[name] = float(look())
    return found


def _cores() -> tuple[int, int]:
    """Ticks that the cores which this process may use were busy, and all ticks."""
    mine, busy, total = os.sched_getaffinity(0), 0, 0
    for text in Path("/proc/stat").read_text().splitlines():
        name, *fields = text.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in mine:
            ticks = [int(field) for field in fields[:8]]  # what guests take is counted in the first ones already
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[column] for column in _IDLE)
    return busy, total


def _group_s() -> float | None:
    """Seconds of all cores that this control group has used; None where that is not told."""
    with suppress(OSError, ValueError, IndexError):
        path = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition("::")[2].strip("/")
        for folder in (Path("/sys/fs/cgroup") / path, Path("/sys/fs/cgroup")):
            if (file := folder / "cpu.stat").exists():
                return int(file.read_text().split()[1]) / 1e6
    return None
