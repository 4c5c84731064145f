"""Profiling: which kernels ran on the device in a forward call, for how long, and who wrote them.

The candidate's process records, the judge attributes. A kernel is the candidate's own when its exact name is that of a
Triton function defined in the candidate's file and launched during the profile, outside of any torch operator.
Device time counts kernels, copies and fills; CPU time never counts. On the `cpu` device a launch of the interpreter and
a top-level torch operator each take the place of a kernel, by wall clock.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from drkernel_q.evaluation import KernelProfile, Origin, Profile
from workers.launch import OWN_RANGE

#: Most rows that are kept of one profile.
MAX_ROWS = 200
_MEMORY_NAMES = ("Memcpy", "Memset")
_COMPILER_PREFIXES = ("triton_poi_", "triton_red_", "triton_per_", "triton_tem_")
#: Operators of torch itself; what a custom operator of the candidate launches is the candidate's.
_TORCH = ("aten::", "prims::", "torch::", "cudnn::", "c10d::")
#: Range of the profiler around the candidate's forward pass.
CALL_RANGE = "drkq::call"


#: Device time and times by kernel name and operator.
Rows = dict[tuple[str, str | None], tuple[float, int]]


class Row(NamedTuple):
    """Device activity of one kind, summed over the profiled calls."""

    name: str
    operator: str | None
    """Torch operator that launched it; None when it was launched outside of any."""
    device_us: float
    times: int


class Profiler:
    """Records device activity of the calls that are made inside `CALL_RANGE` while it runs."""

    def __init__(self, device: str) -> None:
        """Start recording."""
        from torch.profiler import ProfilerActivity, profile

        self.device = device
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
        self.session = profile(activities=activities)
        self.session.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> list[Row]:
        """Stop recording and return what ran."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.session.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return _cuda_rows(self.session) if self.device == "cuda" else _cpu_rows(self.session)


def _cuda_rows(session: Any) -> list[Row]:
    """Sum device activity whose launch lies inside a call, by name and by the torch operator that launched it."""
    from torch._C._autograd import DeviceType

    events = session.profiler.kineto_results.events()
    on_host = [event for event in events if event.device_type() == DeviceType.CPU]
    calls = [
        (event.start_ns(), event.start_ns() + event.duration_ns()) for event in on_host if event.name() == CALL_RANGE
    ]
    launched = {event.correlation_id(): event.start_ns() for event in on_host if not _is_range(event)}
    operators = {event.correlation_id(): event.name() for event in on_host if event.name().startswith(_TORCH)}
    rows: Rows = {}
    for event in events:
        if event.device_type() != DeviceType.CUDA or event.is_user_annotation():
            continue
        at = launched.get(event.correlation_id(), event.start_ns())
        if any(start <= at <= end for start, end in calls):
            _add(rows, event.name(), operators.get(event.linked_correlation_id()), event.duration_ns() / 1e3)
    return _listed(rows)


def _is_range(event: Any) -> bool:
    return event.is_user_annotation() or "::" in event.name()


def _cpu_rows(session: Any) -> list[Row]:
    """Sum, inside of calls, launches of the interpreter and the torch operators around them, by wall clock."""
    rows: Rows = {}
    for event in session.events() or ():
        parents = _parents(event)
        if CALL_RANGE not in parents or any(name.startswith((*_TORCH, OWN_RANGE)) for name in parents):
            continue
        if event.name.startswith(OWN_RANGE):
            _add(rows, event.name.removeprefix(OWN_RANGE), None, event.cpu_time_total)
        elif event.name.startswith(_TORCH):
            _add(rows, event.name, event.name, event.cpu_time_total)
    return _listed(rows)


def _parents(event: Any) -> list[str]:
    names = []
    parent = event.cpu_parent
    while parent is not None:
        names.append(parent.name)
        parent = parent.cpu_parent
    return names


def _add(rows: Rows, name: str, operator: str | None, device_us: float) -> None:
    total, times = rows.get((name, operator), (0.0, 0))
    rows[name, operator] = (total + device_us, times + 1)


def _listed(rows: Rows) -> list[Row]:
    return [Row(name, operator, total, times) for (name, operator), (total, times) in rows.items()]


def attribute(rows: Sequence[Row], own_names: set[str], calls: int) -> Profile:
    """Say who wrote each kernel and compute the profile ratio; all figures are for one call."""
    merged: dict[tuple[str, Origin], tuple[float, int]] = {}
    for row in rows:
        key = (row.name, _origin(row, own_names))
        total, count = merged.get(key, (0.0, 0))
        merged[key] = (total + row.device_us, count + row.times)
    kernels = [
        KernelProfile(name=name[:200], device_us=total / calls, launches=count / calls, origin=origin)
        for (name, origin), (total, count) in sorted(merged.items(), key=lambda item: -item[1][0])
    ]
    total_us = sum(kernel.device_us for kernel in kernels)
    own = [kernel for kernel in kernels if kernel.origin is Origin.CANDIDATE]
    ratio = min(sum(kernel.device_us for kernel in own) / total_us, 1.0) if total_us > 0 else None
    return Profile(
        profile_ratio=ratio,
        launches=sum(kernel.launches for kernel in own),
        device_us=total_us,
        kernels=tuple(kernels[:MAX_ROWS]),
    )


def _origin(row: Row, own_names: set[str]) -> Origin:
    if row.operator is None and row.name in own_names:
        return Origin.CANDIDATE
    if row.name.startswith(_MEMORY_NAMES):
        return Origin.MEMORY
    if row.name.startswith(_COMPILER_PREFIXES):
        return Origin.COMPILER
    return Origin.TORCH if row.operator is not None else Origin.OTHER
