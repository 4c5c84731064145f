"""Profiling: what a recording must show to be believed, and real recordings of the CPU device."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import record_function

from drkernel_q.evaluation import Outcome
from drkernel_q.profile import KernelProfile, Origin, Profile
from tests.judging import builtin
from workers.comparison.reference import Reference
from workers.exchange.trace import CALL_RANGE, OWN_RANGE, Row, Span, Trace
from workers.harness.profiler import Profiler
from workers.judging.answer import Answer
from workers.judging.profiling import fault_of, host_fault_of, time_reference, unreplaced


def spans(*windows_us: float) -> Trace:
    return Trace(spans=tuple(Span(window, window, 0.0, 1) for window in windows_us))


@pytest.mark.parametrize(
    ("trace", "fault"),
    [
        (spans(100.0, 100.0, 100.0), None),
        (spans(100.0, 100.0), "2 calls were recorded, 3 were made"),
        (spans(100.0, 100.0, 100.0, 100.0), "4 calls were recorded, 3 were made"),
        (spans(56.0, 56.0, 56.0), None),
        (spans(54.0, 54.0, 54.0), "calls that take 100 us have 54 us in the recording"),
        (spans(0.0, 0.0, 100.0), "calls that take 100 us have 0 us in the recording"),
        (spans(500.0, 900.0, 700.0), None),
    ],
    ids=["whole", "too few", "too many", "just enough", "too little", "mostly nothing", "more"],
)
def test_a_recording_shows_every_call_and_its_time(trace: Trace, fault: str | None) -> None:
    assert fault_of(trace, 3, 0.1) == fault


@given(st.floats(1e-5, 0.026))
def test_a_tiny_call_is_not_asked_for_its_time(claimed_ms: float) -> None:
    assert fault_of(spans(0.0), 1, claimed_ms) is None


def test_on_the_cpu_device_launches_are_counted_twice() -> None:
    call = Answer(None, Outcome.CORRECT, None, (), own_launches=2, other_launches=1)
    recorded = Row("own", None, 1.0, 3)
    whole = Trace((recorded, Row("aten::add", "aten::add", 1.0, 9)), (Span(1.0, 1.0, 0.0, 1),))
    assert host_fault_of(whole, [call]) is None
    assert host_fault_of(whole._replace(rows=(recorded._replace(times=4),)), [call]) == (
        "4 launches were recorded, 3 were made"
    )
    assert host_fault_of(whole, [call, call]) == "1 calls were recorded, 2 were made"


def work() -> None:
    left = torch.ones(8, 8)
    with record_function(OWN_RANGE + "mine"):
        left + left
    torch.softmax(left, -1)


def recorded(*calls: object, profiler: Profiler | None = None) -> Trace:
    profiler = profiler or Profiler("cpu")
    profiler.start()
    assert profiler.on
    work()
    for call in calls:
        with profiler.call():
            assert callable(call)
            call()
    trace = profiler.stop()
    assert not profiler.on
    return trace


def names(trace: Trace) -> list[tuple[str, int]]:
    return sorted((row.name, row.times) for row in trace.rows if row.name != "aten::ones")


def test_calls_are_recorded_again_and_again() -> None:
    profiler = Profiler("cpu")
    for _ in range(2):
        trace = recorded(work, work, profiler=profiler)
        assert trace.fault is None
        assert len(trace.spans) == 2
        assert names(trace) == [("aten::softmax", 2), ("mine", 2)]
        assert all(0 < span.busy_us <= span.window_us for span in trace.spans)


def test_work_of_a_thread_within_a_call_is_the_calls() -> None:
    def threaded() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert names(recorded(threaded)) == [("aten::softmax", 1), ("mine", 1)]


def test_a_call_within_a_call_is_one_too_many() -> None:
    def twice() -> None:
        with record_function(CALL_RANGE):
            work()

    trace = recorded(twice)
    assert fault_of(trace, 1, 0.0) == "2 calls were recorded, 1 were made"


def test_a_session_that_somebody_ends_is_a_fault() -> None:
    trace = recorded(work, torch.autograd._disable_profiler)
    assert trace.fault is not None
    assert trace.rows == ()
    assert recorded(work).fault is None  # and no harm is done to the next one


def profile_of(**times: tuple[float, str]) -> Profile:
    kernels = tuple(
        KernelProfile(name=name, device_us=time_us, launches=1, origin=Origin(origin))
        for name, (time_us, origin) in times.items()
    )
    return Profile(profile_ratio=0.5, launches=1, device_us=1.0, kernels=kernels)


@pytest.mark.parametrize(
    ("profile", "share"),
    [
        (profile_of(gemm=(100.0, "library"), gelu=(20.0, "torch"), mine=(5.0, "candidate")), 1.0),
        (profile_of(gemm=(100.0, "library"), mine=(20.0, "candidate")), 0.0),
        (profile_of(gemm=(100.0, "library"), gelu=(2.0, "torch")), 0.1),
        (profile_of(gemm=(100.0, "candidate"), gelu=(20.0, "torch")), 0.0),
        (profile_of(gemm=(300.0, "library"), gelu=(90.0, "torch")), 1.0),
    ],
    ids=["a decoy beside", "an epilogue replaced", "nearly all of it", "own kernels of that name", "slower"],
)
def test_the_least_share_that_torch_still_has(profile: Profile, share: float) -> None:
    assert unreplaced(profile, {"gemm": 100.0, "gelu": 20.0}) == pytest.approx(share)
    assert unreplaced(profile, {}) is None


def test_the_time_of_the_reference_is_told_by_kernel() -> None:
    reference = Reference(builtin("linear_gelu_scale").small(), "cpu", train=False)
    reference.build(1)
    times = time_reference(reference)
    assert {"aten::linear", "aten::gelu"} <= times.keys()
    assert all(time_us > 0 for time_us in times.values())
