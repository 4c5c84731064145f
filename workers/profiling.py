"""Profiling: which kernels ran on the device in a forward call, for how long, and who wrote them.

The candidate's process records, the judge attributes. A kernel is the candidate's own when its exact name is that of a
Triton function defined in the candidate's file and launched during the profile, outside of any torch operator.
Device time counts kernels, copies and fills; CPU time never counts. On the `cpu` device a launch of the interpreter and
a top-level torch operator each take the place of a kernel, by wall clock.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from drkernel_q.evaluation import KernelProfile, Origin, Profile
from workers import launch

#: Most rows that are kept of one profile.
MAX_ROWS = 200
_MEMORY_NAMES = ("Memcpy", "Memset")
_COMPILER_PREFIXES = ("triton_poi_", "triton_red_", "triton_per_", "triton_tem_")
_OWN_RANGE = "drkq::launch::"


class Row(NamedTuple):
    """Device activity of one kind, summed over the profiled calls."""

    name: str
    operator: str | None
    """Torch operator that launched it; None when it was launched outside of any."""
    device_us: float
    times: int


def record(device: str, call: Callable[[], Any], calls: int) -> tuple[list[Row], launch.Launches]:
    """Profile `calls` calls; return device activity, and the Triton launches seen."""
    if device == "cuda":
        with launch.counted(device) as counts:
            rows = _record_cuda(call, calls)
        return rows, counts
    return _record_cpu(call, calls)


def warm_up(device: str) -> None:
    """Pay for the first profiler session of a process (seconds on a GPU)."""
    if device == "cuda":
        _record_cuda(lambda: torch.zeros(1, device="cuda"), 1)


def _record_cuda(call: Callable[[], Any], calls: int) -> list[Row]:
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    operators = {e.correlation_id(): e.name() for e in events if e.device_type() == DeviceType.CPU and _is_operator(e)}
    sums: dict[tuple[str, str | None], tuple[float, int]] = {}
    for event in events:
        if event.device_type() != DeviceType.CUDA or event.is_user_annotation():
            continue
        key = (event.name(), operators.get(event.linked_correlation_id()))
        total, count = sums.get(key, (0.0, 0))
        sums[key] = (total + event.duration_ns() / 1e3, count + 1)
    return [Row(name, operator, total, count) for (name, operator), (total, count) in sums.items()]


def _is_operator(event: Any) -> bool:
    return "::" in event.name() and not event.is_user_annotation()


def _record_cpu(call: Callable[[], Any], calls: int) -> tuple[list[Row], launch.Launches]:
    from torch.profiler import ProfilerActivity, profile

    from workers.interpreter import LaunchRecorder

    with (
        profile(activities=[ProfilerActivity.CPU]) as profiler,
        LaunchRecorder(annotate=_OWN_RANGE) as recorded,
    ):
        for _ in range(calls):
            call()
    counts: launch.Launches = Counter((one.name, one.file) for one in recorded)
    sums: dict[tuple[str, str | None], tuple[float, int]] = {}
    for event in profiler.events() or ():
        if event.cpu_parent is not None:
            continue
        own = event.name.startswith(_OWN_RANGE)
        key = (event.name.removeprefix(_OWN_RANGE), None if own else event.name)
        total, count = sums.get(key, (0.0, 0))
        sums[key] = (total + event.cpu_time_total, count + 1)
    return [Row(name, operator, total, count) for (name, operator), (total, count) in sums.items()], counts


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
