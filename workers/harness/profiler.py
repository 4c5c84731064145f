"""Profiler: records, in the candidate's process, what the device does in the calls of the candidate.

What it says is a claim, like all that comes from that process; the judge looks for what contradicts it.
"""

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType

from workers.exchange.trace import CALL_RANGE, OTHER_RANGE, SENTINEL_RANGE, Event, Kind, Row, Trace, read, read_host
from workers.harness.fatbin import kernels_of

#: Most kinds of activity that are told apart; the rest of them is told as one.
MAX_ROWS = 800
#: Clock cycles that a sentinel spins, and launches at the start that a session may lose.
_SENTINEL_CYCLES = 1000
_WARM_UP_LAUNCHES = 3
#: With a space, which no kernel of Triton can have in its name.
_MEMORY = ("Memcpy ", "Memset ")
_CALL = re.compile(r"cu(da)?[A-Z]\w*")


class Profiler:
    """One session at a time; forward passes made inside of `call` are recorded."""

    def __init__(self, device: str) -> None:
        """Bind what is needed now, before code that could replace it has been loaded."""
        from torch._C._profiler import _ExperimentalConfig
        from torch.autograd.profiler import record_function
        from torch.profiler import ProfilerActivity, profile

        self._cuda = device == "cuda"
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._cuda else [])
        # Threads that the candidate starts are recorded too, and of kernels their registers and blocks.
        config = _ExperimentalConfig(profile_all_threads=True, expose_kineto_event_metadata=True)
        self._new = partial(profile, activities=activities, experimental_config=config)
        self._range = record_function
        self._sync = torch._C._cuda_synchronize if self._cuda else lambda: None
        self._spin = torch._C._cuda_sleep if self._cuda else lambda cycles: None
        self._session: Any = None
        self._fault: str | None = None

    def start(self) -> None:
        """Start to record; what keeps it from it is told by `stop`."""
        self._session, self._fault = self._new(), None
        try:
            self._session.__enter__()
            torch.autograd.profiler._is_profiler_enabled = False  # what asks for it would know that it is watched
            for _ in range(_WARM_UP_LAUNCHES):
                self._spin(_SENTINEL_CYCLES)
            self._sync()
            self._sentinel()
        except RuntimeError as error:
            self._fault = f"the profiler did not start: {error}"

    def call(self, *, counts: bool = True) -> Any:
        """Return the context for one forward pass; one in the mode that is not scored does not count."""
        return self._range(CALL_RANGE if counts else OTHER_RANGE)

    def stop(self) -> Trace:
        """Stop to record and return what ran."""
        session, self._session = self._session, None
        if self._fault is not None:
            return Trace(fault=self._fault)
        try:
            self._sync()
            self._sentinel()
            session.__exit__(None, None, None)
            events = session.profiler.kineto_results.events()
        except (AttributeError, RuntimeError, AssertionError) as error:
            return Trace(fault=f"the profiler was ended by somebody else: {error}")
        trace = read(map(_event, events)) if self._cuda else read_host(map(_event, events))
        overlaps = sorted(trace.overlaps, key=lambda overlap: -overlap.device_us)[:MAX_ROWS]
        return trace._replace(rows=_fold(trace.rows), others=_fold(trace.others), overlaps=tuple(overlaps))

    @property
    def on(self) -> bool:
        """Whether a session was started and not stopped."""
        return self._session is not None

    def _sentinel(self) -> None:
        with self._range(SENTINEL_RANGE):
            self._spin(_SENTINEL_CYCLES)
        self._sync()


def _event(event: Any) -> Event:
    """Read one event of Kineto's."""
    name, start_ns = event.name(), event.start_ns()
    times = (name, start_ns, start_ns + event.duration_ns(), event.device_resource_id())
    if event.device_type() != DeviceType.CPU:
        if event.is_user_annotation():
            return Event(Kind.NOTHING, *times)
        kind = Kind.MEMORY if name.startswith(_MEMORY) else Kind.KERNEL
        facts = _facts(event.metadata_json())
        block, registers = facts.get("block"), facts.get("registers per thread")
        threads = block[0] * block[1] * block[2] if block else None
        return Event(kind, *times, event.correlation_id(), event.linked_correlation_id(), threads, registers)
    if event.is_user_annotation():
        return Event(Kind.RANGE, *times)
    of_torch = '"Ev Idx"' in event.metadata_json()
    if _CALL.fullmatch(name) and not of_torch:
        return Event(Kind.LAUNCH, *times, event.correlation_id())
    return Event(Kind.OPERATOR if of_torch or "::" in name else Kind.NOTHING, *times, event.correlation_id())


def _facts(metadata: str) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(f"{{{metadata}}}")
    except ValueError:
        return {}
    return facts


def _fold(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Keep the rows with the most device time; the rest becomes one row, so that sums stay right."""
    ordered = sorted(rows, key=lambda row: -row.device_us)
    kept, rest = ordered[:MAX_ROWS], ordered[MAX_ROWS:]
    if rest:
        kept.append(Row("(others)", None, sum(row.device_us for row in rest), sum(row.times for row in rest)))
    return tuple(kept)


def built_kernels(folder: str) -> list[tuple[str, int]]:
    """List names, mangled and not, and registers of the kernels in the shared objects of `folder` that are loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if " /" in line}
    built = sorted(path for path in paths if os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep))
    kernels = {kernel for path in built for kernel in kernels_of(Path(path))}
    return sorted({(name, k.registers) for k in kernels for name in (k.name, torch._C._demangle(k.name))})
