"""Traces: which activity belongs to which call and operator, and what an incomplete recording gives away."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.exchange.trace import (
    CALL_RANGE,
    OTHER_RANGE,
    OWN_RANGE,
    SENTINEL_RANGE,
    Event,
    Kind,
    Overlap,
    Row,
    read,
    read_host,
)

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
STREAM, SIDE = 7, 13
#: Nanoseconds between the steps of a recording, and of one kernel.
STEP, KERNEL_NS = 10_000, 4_000


class Recording:
    """Writes down what a profiler would: the harness before and after each call, and what calls launch."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock = 0
        self.device = 0
        self.ids = count(1)
        self.sentinel()

    def add(self, kind: Kind, name: str, length: int, lane: int = 1, **fields: int) -> Event:
        event = Event(kind, name, self.clock, self.clock + length, lane, **fields)
        self.events.append(event)
        return event

    def sentinel(self) -> None:
        self.add(Kind.RANGE, SENTINEL_RANGE, STEP)
        self.launch(SPIN, length=100)
        self.clock += STEP + 1

    def begin(self, steps: int) -> None:
        """Flush and spin, as the stopwatch does, and open a call of so many steps."""
        self.launch(SPIN, length=1000 * STEP)
        self.clock += STEP
        self.add(Kind.RANGE, CALL_RANGE, steps * STEP)

    def launch(
        self,
        name: str,
        *,
        link: int = 0,
        by: str = "cudaLaunchKernel",
        kind: Kind = Kind.KERNEL,
        stream: int = STREAM,
        length: int = KERNEL_NS,
        threads: int | None = None,
        registers: int | None = None,
    ) -> Event:
        """Launch now; the device gets to it when it is free."""
        number = next(self.ids)
        self.add(Kind.LAUNCH, by, 1000, id=number)
        start = max(self.device, self.clock)
        self.device = start + length
        event = Event(kind, name, start, start + length, stream, number, link, threads, registers)
        self.events.append(event)
        self.clock += 2000
        return event

    def operator(self, name: str, number: int, length: int = 5000, lane: int = 1) -> None:
        """Open an operator around what comes in the next so many nanoseconds."""
        self.add(Kind.OPERATOR, name, length, lane, id=number)
        self.clock += 100

    def end(self) -> list[Event]:
        self.clock = max(event.end_ns for event in self.events) + STEP
        self.sentinel()
        return self.events


def rows(events: list[Event]) -> list[tuple[str, str | None, int]]:
    return sorted((row.name, row.operator, row.times) for row in read(events).rows)


def one_call() -> Recording:
    recording = Recording()
    recording.begin(steps=5)
    recording.launch("own", by="cuLaunchKernelEx", threads=256, registers=32)
    recording.operator("aten::softmax", 900)
    recording.launch("theirs", link=900)
    return recording


def test_a_call_has_what_was_launched_in_it_and_nothing_else() -> None:
    trace = read(one_call().end())
    assert trace.fault is None
    assert sorted(trace.rows, key=lambda row: row.name) == [
        Row("own", None, KERNEL_NS / 1e3, 1, threads=256, registers=32),
        Row("theirs", "aten::softmax", KERNEL_NS / 1e3, 1),
    ]


def test_the_window_is_what_events_around_the_call_measure() -> None:
    """The device was kept busy until long after the host had launched all: both kernels follow at once."""
    (span,) = read(one_call().end()).spans
    assert span.busy_us == 2 * KERNEL_NS / 1e3
    assert span.window_us == pytest.approx(2 * KERNEL_NS / 1e3)
    assert (span.early_us, span.streams) == (0.0, 1)


def test_kernels_of_two_streams_overlap() -> None:
    recording = one_call()
    theirs = next(event for event in recording.events if event.name == "theirs")
    for name, start, end in [("junk", -1000, 1000), ("junk", 2000, 9000), ("theirs", 0, 4000), ("later", 9000, 9500)]:
        launched = recording.launch(name, stream=SIDE)
        recording.events[-1] = launched._replace(start_ns=theirs.start_ns + start, end_ns=theirs.start_ns + end)
    found = read(recording.end()).overlaps
    assert sorted(found) == [Overlap("junk", "own", 1.0), Overlap("junk", "theirs", 2 * (1.0 + 2.0))]


def test_a_slow_host_is_part_of_the_window() -> None:
    recording = Recording()
    recording.begin(steps=3000)
    spin_ends = recording.device
    recording.clock = spin_ends + 500 * STEP
    recording.launch("own")
    (span,) = read(recording.end()).spans
    call = next(event for event in recording.events if event.name == CALL_RANGE)
    assert span.window_us == pytest.approx((call.end_ns - spin_ends) / 1e3)
    assert span.busy_us == KERNEL_NS / 1e3


def test_work_beside_the_spin_is_early() -> None:
    recording = Recording()
    recording.begin(steps=5)
    free, recording.device = recording.device, 0
    recording.launch("own", stream=SIDE, by="cuLaunchKernelEx")
    recording.device = free
    (span,) = read(recording.end()).spans
    assert (span.early_us, span.window_us, span.streams) == (KERNEL_NS / 1e3, 0.0, 1)


@pytest.mark.parametrize(
    ("operator", "lane", "found"),
    [("aten::mm", 1, "aten::mm"), ("mine::op", 1, "mine::op"), ("aten::mm", 2, None)],
    ids=["torch's", "a custom one", "on another thread"],
)
def test_without_a_link_the_time_decides(operator: str, lane: int, found: str | None) -> None:
    recording = Recording()
    recording.begin(steps=5)
    recording.operator("aten::outer", 1, length=9000, lane=lane)
    recording.operator(operator, 2, length=3000, lane=lane)
    recording.launch("kernel", by="cuLaunchKernelEx")
    assert rows(recording.end()) == [("kernel", found, 1)]


def test_an_operator_that_ended_just_before_does_not_enclose() -> None:
    """Clocks of host and device are a little apart: an operator encloses a launch as a whole, or not at all."""
    recording = Recording()
    recording.begin(steps=5)
    recording.operator("aten::empty", 1, length=500)
    recording.launch("kernel", by="cuLaunchKernelEx")
    assert rows(recording.end()) == [("kernel", None, 1)]


def test_interleaved_threads_keep_their_operators() -> None:
    recording = Recording()
    recording.begin(steps=9)
    recording.operator("aten::mm", 1, length=9000, lane=1)
    recording.add(Kind.OPERATOR, "mine::op", 9000, 2, id=2)
    for lane in (1, 2):
        recording.launch(f"kernel {lane}")
        launch = recording.events.index(recording.events[-2])
        recording.events[launch] = recording.events[launch]._replace(lane=lane)
    assert rows(recording.end()) == [("kernel 1", "aten::mm", 1), ("kernel 2", "mine::op", 1)]


def test_nodes_of_a_graph_share_the_launch() -> None:
    recording = Recording()
    recording.begin(steps=5)
    first = recording.launch("own", by="cudaGraphLaunch", threads=128)
    for name in ("own", "theirs"):
        recording.events.append(first._replace(name=name, start_ns=recording.device, end_ns=recording.device + 1000))
        recording.device += 1000
    trace = read(recording.end())
    assert trace.fault is None
    assert [(row.name, row.times, row.graph) for row in trace.rows] == [("own", 2, True), ("theirs", 1, True)]


def test_captured_launches_need_no_kernel() -> None:
    recording = Recording()
    recording.begin(steps=9)
    recording.add(Kind.LAUNCH, "cudaStreamBeginCapture", 100, id=9000)
    recording.clock += 200
    recording.add(Kind.LAUNCH, "cuLaunchKernelEx", 100, id=9001)
    recording.clock += 200
    recording.add(Kind.LAUNCH, "cudaStreamEndCapture", 100, id=9002)
    recording.clock += 200
    recording.launch("own", by="cudaGraphLaunch")
    assert read(recording.end()).fault is None


def test_a_launch_within_a_launch_needs_none_of_its_own() -> None:
    recording = Recording()
    recording.begin(steps=5)
    recording.add(Kind.LAUNCH, "cudaLaunchKernel", 5000, id=8000)
    recording.clock += 10
    inner = recording.launch("kernel", by="cuLaunchKernel")
    recording.events[recording.events.index(inner)] = inner._replace(id=8000)
    assert read(recording.end()).fault is None


def test_what_nobody_launched_counts_and_has_no_operator() -> None:
    """Its launch was not recorded: better that it counts against the candidate than that it is left out."""
    recording = one_call()
    recording.events.append(Event(Kind.KERNEL, "stray", recording.device, recording.device + 1000, STREAM, id=77_777))
    recording.device += 1000
    trace = read(recording.end())
    assert trace.fault is None
    assert Row("stray", None, 1.0, 1, graph=True) in trace.rows


def test_of_two_launches_with_one_id_the_first_counts() -> None:
    recording = one_call()
    launch = next(event for event in recording.events if event.name == "cuLaunchKernelEx")
    recording.events.append(launch._replace(start_ns=10**12, end_ns=10**12 + 1))
    assert rows(recording.end()) == [("own", None, 1), ("theirs", "aten::softmax", 1)]


def _without_spin(events: list[Event]) -> list[Event]:
    last = max(events, key=lambda event: event.start_ns if event.name == SPIN else -1)
    return [event for event in events if event is not last]


def _shifted(events: list[Event]) -> list[Event]:
    late = max(event.end_ns for event in events) + STEP
    return [
        event._replace(start_ns=late, end_ns=late + 1) if event.kind is Kind.KERNEL and event.name == "own" else event
        for event in events
    ]


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda events: [], "0 marks"),
        (lambda events: [event for event in events if event.name != SENTINEL_RANGE], "0 marks"),
        (lambda events: [event for event in events if event.name != SPIN], "missing"),
        (_without_spin, "missing"),
        (_shifted, "do not lie around them"),
        (lambda events: [event for event in events if event.name != "own"], "1 launches"),
        (lambda events: [event for event in events if event.name not in ("own", "theirs")], "2 launches"),
        (lambda events: [event for event in events if event.kind is not Kind.KERNEL], "missing"),
    ],
    ids=["nothing", "no marks", "no spins", "no last spin", "wrong order", "a kernel lost", "two lost", "host only"],
)
def test_an_incomplete_recording_says_so(damage: object, fault: str) -> None:
    assert callable(damage)
    found = read(damage(one_call().end())).fault
    assert found is not None
    assert fault in found


def test_a_call_in_the_other_mode_is_told_apart() -> None:
    recording = one_call()
    recording.clock = max(event.end_ns for event in recording.events) + STEP
    recording.add(Kind.RANGE, OTHER_RANGE, 5 * STEP)
    recording.launch("in training", threads=128)
    stray = recording.launch("of a graph")
    recording.events = [event for event in recording.events if event.kind is not Kind.LAUNCH or event.id != stray.id]
    trace = read(recording.end())
    assert trace.fault is None
    assert {row.name for row in trace.rows} == {"own", "theirs"}
    assert {row.name for row in trace.others} == {"in training", "of a graph"}
    assert len(trace.spans) == 1


def test_nothing_is_hidden_by_a_range_that_a_candidate_opens() -> None:
    recording = Recording()
    recording.begin(steps=5)
    recording.add(Kind.RANGE, OTHER_RANGE, 3 * STEP)
    stray = recording.launch("of a graph")
    recording.launch("hidden")
    recording.events = [event for event in recording.events if event.kind is not Kind.LAUNCH or event.id != stray.id]
    trace = read(recording.end())
    assert {row.name for row in trace.rows} == {"of a graph", "hidden"}
    assert trace.others == ()


def test_a_call_after_the_last_mark_is_a_fault() -> None:
    recording = Recording()
    recording.sentinel()
    recording.begin(steps=2)
    assert read(recording.events).fault == "the marks of the harness do not lie around the calls"


LAUNCHES = st.lists(
    st.tuples(
        st.sampled_from(["own", "gemm", "Memcpy"]),
        st.sampled_from([None, "aten::mm", "mine::op"]),
        st.booleans(),
        st.sampled_from([STREAM, SIDE]),
        st.integers(1, 9000),
    ),
    max_size=6,
)


def record(calls: list[list[tuple[str, str | None, bool, int, int]]]) -> list[Event]:
    recording = Recording()
    for launches in calls:
        recording.begin(steps=len(launches) + 1)
        for name, operator, linked, stream, length in launches:
            number = next(recording.ids) + 10_000
            if operator is not None:
                recording.operator(operator, number)
            kind = Kind.MEMORY if name == "Memcpy" else Kind.KERNEL
            recording.launch(name, link=number * linked, stream=stream, length=length, kind=kind)
            recording.clock += STEP - 2000 - 100 * (operator is not None)
        recording.clock = max(event.end_ns for event in recording.events) + STEP
    return recording.end()


@given(st.lists(LAUNCHES, max_size=4), st.randoms(use_true_random=False))
def test_every_activity_is_told_once_whatever_the_order(
    calls: list[list[tuple[str, str | None, bool, int, int]]], random: object
) -> None:
    events = record(calls)
    trace = read(events)
    assert trace.fault is None
    assert len(trace.spans) == len(calls)
    wanted = sorted((name, operator or "", 1) for launches in calls for name, operator, *_ in launches)
    assert sorted((row.name, row.operator or "", 1) for row in trace.rows for _ in range(row.times)) == wanted
    assert sum(row.device_us for row in trace.rows) == pytest.approx(
        sum(length for launches in calls for *_, length in launches) / 1e3
    )
    for span, launches in zip(trace.spans, calls, strict=True):
        assert span.busy_us <= span.window_us + 1e-6
        assert span.busy_us == pytest.approx(sum(length for *_, length in launches) / 1e3)
        assert span.early_us == 0.0
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert read(shuffled) == trace


@given(st.lists(LAUNCHES, min_size=1, max_size=3), st.data())
def test_no_kernel_is_lost_in_silence(
    calls: list[list[tuple[str, str | None, bool, int, int]]], data: st.DataObject
) -> None:
    events = record(calls)
    kernels = [event for event in events if event.kind is Kind.KERNEL and event.name in ("own", "gemm")]
    if not kernels:
        return
    lost = data.draw(st.sampled_from(kernels))
    assert (
        read([event for event in events if event is not lost]).fault
        == "1 launches of kernels have no kernel on the device"
    )


EVENTS = st.builds(
    Event,
    st.sampled_from(Kind),
    st.sampled_from([CALL_RANGE, SENTINEL_RANGE, "aten::mm", "cudaLaunchKernel", "cudaGraphLaunch", SPIN, "own"]),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 2),
    st.integers(0, 4),
    st.integers(0, 4),
)


@given(st.lists(EVENTS, max_size=30))
def test_nonsense_is_read_without_an_error(events: list[Event]) -> None:
    for trace in (read(events), read_host(events)):
        assert all(row.times > 0 for row in trace.rows)
        marks = [event for event in events if event.kind is Kind.RANGE and event.name == SENTINEL_RANGE]
        assert trace.fault is not None or len(marks) == 2


def host(kind: Kind, name: str, start: int, end: int, number: int = 0, lane: int = 1) -> Event:
    return Event(kind, name, start, end, lane, number)


def test_on_the_cpu_device_the_outermost_counts() -> None:
    events = [
        host(Kind.RANGE, SENTINEL_RANGE, 0, 1000),
        host(Kind.RANGE, CALL_RANGE, 2000, 90_000),
        host(Kind.RANGE, OWN_RANGE + "own", 3000, 13_000),
        host(Kind.OPERATOR, "aten::add", 4000, 5000, 1),
        host(Kind.OPERATOR, "aten::softmax", 20_000, 30_000, 2),
        host(Kind.OPERATOR, "aten::_softmax", 21_000, 29_000, 3),
        host(Kind.OPERATOR, "mine::op", 40_000, 60_000, 4),
        host(Kind.RANGE, OWN_RANGE + "own", 41_000, 51_000),
        host(Kind.OPERATOR, "aten::exp", 61_000, 62_000, 5, lane=2),
        host(Kind.OPERATOR, "aten::before", 1500, 1600, 6),
        host(Kind.RANGE, SENTINEL_RANGE, 95_000, 96_000),
    ]
    trace = read_host(events)
    assert trace.fault is None
    assert sorted((row.name, row.operator or "", row.device_us, row.times) for row in trace.rows) == [
        ("aten::exp", "aten::exp", 1.0, 1),
        ("aten::softmax", "aten::softmax", 10.0, 1),
        ("own", "", 20.0, 2),
    ]
    (span,) = trace.spans
    assert (span.window_us, span.busy_us) == (88.0, 31.0)
    assert read_host(events[1:]).fault == "1 marks of the harness instead of one before and one after the calls"
