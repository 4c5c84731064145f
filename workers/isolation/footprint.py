"""Footprint: what a process and those that it has made amount to, as the kernel counts."""

import os
from collections.abc import Callable


def sum_over_family(pid: int, measure: Callable[[int], int]) -> int:
    """Sum a measure over a process and its descendants; a process that ends meanwhile counts nothing."""
    try:
        total = measure(pid)
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return total + sum(sum_over_family(int(child), measure) for child in children.read().split())
    except (OSError, ValueError):
        return 0


def children(pid: int) -> int:
    """Count the processes that a process has made and that still live, daemons included where it has its own user."""
    try:
        user = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return 0
    if user != os.getuid():
        family = sum(_owner(name) == user for name in os.listdir("/proc") if name.isdigit())
    else:
        family = sum_over_family(pid, lambda _: 1)
    return max(family - 1, 0)  # it may have ended meanwhile


def _owner(name: str) -> int:
    try:
        return os.stat(f"/proc/{name}").st_uid
    except OSError:
        return -1  # it ended meanwhile


def resident_bytes(pid: int) -> int:
    """Return resident memory without shared files, bytes."""
    with open(f"/proc/{pid}/statm") as statm:
        _, resident, shared = statm.read().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int:
    """Return anonymous memory with shared pages divided among those who share them, bytes."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        lines = dict(line.split(":", 1) for line in rollup.read().splitlines()[1:])
    return int(lines["Pss_Anon"].split()[0]) * 1024
