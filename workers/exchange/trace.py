"""Trace: from the events of a profiler to what ran on the device in each call, and whether all of it was recorded.

An activity of the device belongs to the call of the CUDA runtime or driver that launched it (they share a correlation
id), and this to the operator around it: the one that the profiler linked, or else the innermost one that encloses the
launch in time on its thread. Nothing here touches a profiler, so that whatever one may do wrong can be tested.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

#: Ranges of the profiler: around a forward pass, around one in the mode that is not scored, which comes after the
#: others, and around what the harness does before and after all of them.
CALL_RANGE = "drkq::call"
OTHER_RANGE = "drkq::other"
SENTINEL_RANGE = "drkq::sentinel"
#: In the name of the kernel that is launched within `SENTINEL_RANGE`.
SENTINEL_KERNEL = "spin_kernel"
#: In front of a kernel's name, where a launch of the interpreter takes the place of an activity of the device.
OWN_RANGE = "drkq::launch::"
#: Operators of torch itself; what a custom operator of the candidate launches is the candidate's.
TORCH = ("aten::", "prims::", "torch::", "cudnn::", "c10d::", "quantized::", "sparse::", "nccl:")
_LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel(ExC|Ex)?(_\w+)?")
_GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch(_\w+)?")
_CAPTURE = re.compile(r"cu(da)?Stream(Begin|End)Capture(_\w+)?")


class Kind(Enum):
    """What an event of the profiler is."""

    RANGE = auto()
    """A stretch of the host's time, named by `record_function`."""
    OPERATOR = auto()
    """An operator that torch dispatched."""
    LAUNCH = auto()
    """A call of the CUDA runtime or driver."""
    KERNEL = auto()
    """A kernel on the device."""
    MEMORY = auto()
    """A copy or a fill on the device."""
    NOTHING = auto()
    """What says nothing about who did what."""


class Event(NamedTuple):
    """One event, on the host or on the device."""

    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    lane: int
    """Thread of the host, or stream of the device."""
    id: int = 0
    """An operator's number; of launches and what they start on the device, the correlation id that they share."""
    link: int = 0
    """Of activities of the device, the number of the operator that launched them; 0 when there is none."""
    threads: int | None = None
    """Of kernels, threads of a block, if known."""
    registers: int | None = None
    """Of kernels, registers of a thread, if known."""


class Row(NamedTuple):
    """Activity of the device of one kind, summed over the calls."""

    name: str
    operator: str | None
    """Operator that launched it; None when there is none."""
    device_us: float
    times: int
    memory: bool = False
    """Whether it is a copy or a fill."""
    graph: bool = False
    """Whether it came from a CUDA graph, or nobody knows where from: operators are not seen around such."""
    threads: int | None = None
    registers: int | None = None


class Span(NamedTuple):
    """One call as the device saw it, microseconds."""

    window_us: float
    """From the end of what the harness had the device do right before, to the end of the call and all its work."""
    busy_us: float
    """Time within which something of the call ran."""
    early_us: float
    """Of that, before the window: such work runs beside what the device is kept busy with before the clock starts."""
    streams: int
    """Streams that the call's work ran on."""


class Overlap(NamedTuple):
    """Time, over all calls, in which kernels of two names ran beside each other; a pair stands once."""

    name: str
    other: str
    device_us: float


class Trace(NamedTuple):
    """What ran in the calls."""

    rows: tuple[Row, ...] = ()
    spans: tuple[Span, ...] = ()
    """One for each call that was seen, in order."""
    fault: str | None = None
    """What shows that the recording is not whole, if anything does."""
    others: tuple[Row, ...] = ()
    """What ran in a call in the other mode, or after its start where nobody knows what launched it."""
    overlaps: tuple[Overlap, ...] = ()
    """Kernels of several streams that ran at the same time in calls."""


def read(events: Iterable[Event]) -> Trace:
    """Attribute the activities of the device; the order of the events does not matter."""
    log = _Log(events)
    calls = log.ranges[CALL_RANGE]
    other_calls = [each for each in log.ranges[OTHER_RANGE] if not calls or each.start_ns >= calls[-1].end_ns]
    within: list[list[Event]] = [[] for _ in calls]
    outside: list[tuple[int, int]] = []
    astray: list[Event] = []
    others: list[Event] = []
    for activity in log.activities:
        at = log.launched_at(activity)
        if at is None:
            if log.between_sentinels(activity):
                is_late = other_calls and activity.start_ns >= other_calls[0].start_ns
                (others if is_late else astray).append(activity)
        elif (number := _index(calls, at)) is not None:
            within[number].append(activity)
        elif _index(other_calls, at) is not None:
            others.append(activity)
        else:
            outside.append((at, activity.end_ns))
    of_calls = [*astray, *(activity for own in within for activity in own)]
    spans = _spans(calls, within, sorted(outside))
    fault = log.sentinel_fault([*calls, *other_calls], [*of_calls, *others]) or log.lost_launches(calls)
    return Trace(log.rows(of_calls), spans, fault, log.rows(others), _overlaps(of_calls))


def read_host(events: Iterable[Event]) -> Trace:
    """Do the same for the CPU device.

    Launches of the interpreter and operators of torch that stand in none of the two take the place of activities of the
    device, by wall clock.
    """
    log = _Log(events)
    calls = log.ranges[CALL_RANGE]
    named = [event for name, ranges in log.ranges.items() if name.startswith(OWN_RANGE) for event in ranges]
    shown = [*named, *(event for event in log.operators.values() if event.name.startswith(TORCH))]
    lanes = _Lanes(shown)
    within: list[list[Event]] = [[] for _ in calls]
    for event in lanes.outermost():
        number = _index(calls, event.start_ns)
        if number is not None:
            within[number].append(event)
    rows = _sum((_host_row(event), event.end_ns - event.start_ns) for own in within for event in own)
    busy_us = [sum(event.end_ns - event.start_ns for event in own) / 1e3 for own in within]
    spans = (Span((call.end_ns - call.start_ns) / 1e3, busy, 0.0, 1) for call, busy in zip(calls, busy_us, strict=True))
    return Trace(rows, tuple(spans), _sentinel_range_fault(log.ranges[SENTINEL_RANGE], calls))


class _Log:
    """Events by what they are; of two with one id, the earlier counts."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.ranges: dict[str, list[Event]] = defaultdict(list)
        self.operators: dict[int, Event] = {}
        self.launches: dict[int, Event] = {}
        self.activities: list[Event] = []
        for event in sorted(events, key=_order):
            if event.kind is Kind.RANGE:
                self.ranges[event.name].append(event)
            elif event.kind is Kind.OPERATOR:
                self.operators.setdefault(event.id, event)
            elif event.kind is Kind.LAUNCH:
                self.launches.setdefault(event.id, event)
            elif event.kind is not Kind.NOTHING:
                self.activities.append(event)
        self._nesting = _Lanes(self.operators.values())
        self._sentinels = [self._spin(sentinel) for sentinel in self.ranges[SENTINEL_RANGE]]

    def launched_at(self, activity: Event) -> int | None:
        """When the host launched an activity; None if no record says."""
        source = self.launches.get(activity.id) or self.operators.get(activity.link)
        return None if source is None else source.start_ns

    def row(self, activity: Event) -> Row:
        """Return the kind of an activity, as a row without time."""
        launch = self.launches.get(activity.id)
        operator = self.operators.get(activity.link)
        if operator is None and launch is not None:
            operator = self._nesting.enclosing(launch)
        return Row(
            activity.name,
            None if operator is None else operator.name,
            0.0,
            0,
            activity.kind is Kind.MEMORY,
            launch is None or _GRAPH_LAUNCH.fullmatch(launch.name) is not None,
            activity.threads,
            activity.registers,
        )

    def rows(self, activities: Sequence[Event]) -> tuple[Row, ...]:
        """Sum activities up by their kinds."""
        return _sum((self.row(activity), activity.end_ns - activity.start_ns) for activity in activities)

    def between_sentinels(self, activity: Event) -> bool:
        """Whether it ran between the kernels of the sentinels, as far as these are there."""
        ends = self._sentinels
        return not (ends and ends[0] and activity.start_ns < ends[0].end_ns) and not (
            ends and ends[-1] and activity.start_ns >= ends[-1].start_ns
        )

    def sentinel_fault(self, calls: Sequence[Event], activities: Sequence[Event]) -> str | None:
        """Say how the sentinels are not around the calls, on the host or on the device."""
        fault = _sentinel_range_fault(self.ranges[SENTINEL_RANGE], calls)
        if fault is not None:
            return fault
        first, last = self._sentinels
        if first is None or last is None:
            return "a kernel that the harness launched around the calls is missing"
        if any(one.start_ns < first.end_ns or one.end_ns > last.start_ns for one in activities):
            return "the kernels that the harness launched around the calls do not lie around them"
        return None

    def _spin(self, sentinel: Event) -> Event | None:
        for activity in self.activities:
            launch = self.launches.get(activity.id)
            inside = launch is not None and sentinel.start_ns <= launch.start_ns <= sentinel.end_ns
            if inside and SENTINEL_KERNEL in activity.name:
                return activity
        return None

    def lost_launches(self, calls: Sequence[Event]) -> str | None:
        """Say how many kernels were launched in calls, and are not among the activities."""
        seen = {activity.id for activity in self.activities}
        capturing: dict[int, bool] = {}
        busy_until: dict[int, int] = {}
        lost = 0
        for launch in self.launches.values():
            change = _CAPTURE.fullmatch(launch.name)
            if change is not None:
                capturing[launch.lane] = change[2] == "Begin"
            if _LAUNCH.fullmatch(launch.name) is None or _index(calls, launch.start_ns) is None:
                continue
            nested = launch.end_ns <= busy_until.get(launch.lane, 0)
            busy_until[launch.lane] = max(launch.end_ns, busy_until.get(launch.lane, 0))
            lost += not nested and not capturing.get(launch.lane) and launch.id not in seen
        return f"{lost} launches of kernels have no kernel on the device" if lost else None


class _Lanes:
    """Events that nest on each lane."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: dict[int, list[Event]] = defaultdict(list)
        self._parents: dict[int, list[int]] = defaultdict(list)
        for event in sorted(events, key=_order):
            lane, parents = self._events[event.lane], self._parents[event.lane]
            parent = len(lane) - 1
            while parent >= 0 and lane[parent].end_ns < event.end_ns:
                parent = parents[parent]
            lane.append(event)
            parents.append(parent)

    def enclosing(self, event: Event) -> Event | None:
        """Return the innermost event of the same lane that encloses `event`."""
        lane, parents = self._events.get(event.lane, []), self._parents.get(event.lane, [])
        number = bisect_right(lane, event.start_ns, key=lambda other: other.start_ns) - 1
        while number >= 0 and lane[number].end_ns < event.end_ns:
            number = parents[number]
        return lane[number] if number >= 0 else None

    def outermost(self) -> list[Event]:
        """Return the events that no other one encloses."""
        pairs = [pair for lane in self._events for pair in zip(self._events[lane], self._parents[lane], strict=True)]
        return [event for event, parent in pairs if parent < 0]


def _order(event: Event) -> tuple[int, int, int, str, int, int, int]:
    return event.start_ns, -event.end_ns, event.kind.value, event.name, event.lane, event.id, event.link


def _index(calls: Sequence[Event], at: int) -> int | None:
    """Return the number of the call that a moment lies in."""
    number = bisect_right(calls, at, key=lambda call: call.start_ns) - 1
    return number if number >= 0 and at <= calls[number].end_ns else None


def _sum(parts: Iterable[tuple[Row, int]]) -> tuple[Row, ...]:
    sums: dict[Row, tuple[int, int]] = {}
    for row, time_ns in parts:
        total_ns, times = sums.get(row, (0, 0))
        sums[row] = (total_ns + time_ns, times + 1)
    return tuple(row._replace(device_us=total_ns / 1e3, times=times) for row, (total_ns, times) in sums.items())


def _host_row(event: Event) -> Row:
    if event.kind is Kind.RANGE:
        return Row(event.name.removeprefix(OWN_RANGE), None, 0.0, 0)
    return Row(event.name, event.name, 0.0, 0)


def _spans(
    calls: Sequence[Event], within: Sequence[Sequence[Event]], outside: Sequence[tuple[int, int]]
) -> tuple[Span, ...]:
    """`outside` are, for what the harness launched, launch and end on the device, in the order of launches."""
    free_at = list(accumulate((end for _, end in outside), max))
    spans = []
    for call, own in zip(calls, within, strict=True):
        before = bisect_right(outside, call.start_ns, key=lambda pair: pair[0]) - 1
        begin = free_at[before] if before >= 0 else call.start_ns
        end = max([call.end_ns, *(activity.end_ns for activity in own)])
        early = [activity._replace(end_ns=min(activity.end_ns, begin)) for activity in own if activity.start_ns < begin]
        streams = len({activity.lane for activity in own})
        spans.append(Span(max(end - begin, 0) / 1e3, _covered_ns(own) / 1e3, _covered_ns(early) / 1e3, streams))
    return tuple(spans)


def _overlaps(activities: Iterable[Event]) -> tuple[Overlap, ...]:
    """Find kernels of different names that ran at the same time."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    running: list[Event] = []
    for event in sorted((each for each in activities if each.kind is Kind.KERNEL), key=_order):
        running = [other for other in running if other.end_ns > event.start_ns]
        for other in running:
            if other.name != event.name:
                low, high = sorted((other.name, event.name))
                sums[low, high] += min(other.end_ns, event.end_ns) - event.start_ns
        running.append(event)
    return tuple(Overlap(*names, time_ns / 1e3) for names, time_ns in sums.items())


def _covered_ns(events: Iterable[Event]) -> int:
    """Return the length of the union of intervals."""
    covered = reached = 0
    for event in sorted(events, key=_order):
        covered += max(event.end_ns - max(event.start_ns, reached), 0)
        reached = max(reached, event.end_ns)
    return covered


def _sentinel_range_fault(sentinels: Sequence[Event], calls: Sequence[Event]) -> str | None:
    if len(sentinels) != 2:  # noqa: PLR2004 - one at each end
        return f"{len(sentinels)} marks of the harness instead of one before and one after the calls"
    first, last = sentinels
    if any(call.start_ns < first.end_ns or call.end_ns > last.start_ns for call in calls):
        return "the marks of the harness do not lie around the calls"
    return None
