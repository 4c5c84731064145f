"""The judge's own clock, over bursts whose times are known."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from workers.comparison.measure import Expected
from workers.exchange.stopwatch import Stopwatch
from workers.isolation import linux
from workers.judging.clock import (
    BURSTS,
    CHECKS,
    MARK_NOISE_MS,
    NOISE_MS,
    REQUEST_MS,
    Pace,
    listener,
    read_clock,
    read_until_agreed,
    warm_up,
)


class Bursts:
    """A side whose calls take `call_ms`, and a request to it `request_ms`, with noise, on the judge's clock."""

    expected_like = Expected([], [], [], 1)

    def __init__(self, call_ms: float, *, request_ms: float = 0.0, noise: float = 0.0) -> None:
        self.most_calls = 100
        self.made = 0
        self.call_ms = call_ms
        self.request_ms = request_ms
        self.noise = noise
        self.generator = np.random.default_rng(0)

    def burst(self, calls: int) -> Pace:
        self.made += 1
        gaps = [self.call_ms * (1 + self.noise * self.generator.exponential()) for _ in range(calls)]
        return Pace((self.request_ms + sum(gaps)) / 1e3, tuple(gaps))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("call_ms", [0.05, 2.0, 50.0, 1000.0])
def test_the_judges_clock_leaves_out_what_a_call_does_not_cost(device: str, call_ms: float) -> None:
    overhead_ms = 1.5
    clock = read_clock(Bursts(call_ms + overhead_ms, request_ms=4.0), Bursts(overhead_ms), device, call_ms)
    assert clock.call_ms == pytest.approx(call_ms)
    assert clock.bound_ms == pytest.approx(call_ms)
    assert clock.noise_ms == pytest.approx(MARK_NOISE_MS if device == "cuda" else NOISE_MS[device])


def test_the_judges_clock_never_runs_backwards() -> None:
    clock = read_clock(Bursts(0.5), Bursts(1.0), "cuda", 0.1)
    assert (clock.call_ms, clock.bound_ms) == (0.0, 0.0)


def test_noise_that_only_ever_adds_hardly_moves_the_clock() -> None:
    noisy = read_clock(Bursts(3.0, noise=0.02), Bursts(1.0, noise=0.02), "cuda", 2.0)
    assert noisy.call_ms == pytest.approx(2.0, rel=0.05)


def test_a_disturbed_call_does_not_move_the_marks() -> None:
    class Disturbed(Bursts):
        def burst(self, calls: int) -> Pace:
            seconds, gaps = super().burst(calls)
            return Pace(seconds + 9e-3, (gaps[0] + 9.0, *gaps[1:]))  # as the first after a change of process is

    clock = read_clock(Disturbed(1.05), Bursts(1.0), "cuda", 0.05)
    assert clock.call_ms == pytest.approx(0.05)


class Dawdler(Bursts):
    """Makes short bursts last, so that the slope between short and long ones tells nothing."""

    def burst(self, calls: int) -> Pace:
        return Pace(max(super().burst(calls).seconds, 30 * self.call_ms / 1e3))


class Marker(Bursts):
    """Says that each call is over before it is."""

    def burst(self, calls: int) -> Pace:
        seconds, gaps = super().burst(calls)
        return Pace(seconds, tuple(1.0 for _ in gaps))


@pytest.mark.parametrize(("liar", "device"), [(Dawdler(300.0), "cpu"), (Marker(3.0), "cuda")])
def test_whoever_lies_about_the_pace_is_seen_by_the_time_of_a_burst(liar: Bursts, device: str) -> None:
    clock = read_clock(liar, Bursts(1.0), device, 0.1)
    assert clock.call_ms == 0.0
    calls, most = (20, liar.call_ms - 1.0) if device == "cuda" else (6, 5 * liar.call_ms - 1.0)
    assert clock.bound_ms == pytest.approx(most - REQUEST_MS[device] / calls)
    assert clock.noise_ms == NOISE_MS[device]


@pytest.mark.parametrize(("claimed_ms", "readings"), [(4990.0, 1), (100.0, CHECKS["cpu"])])
def test_the_clock_is_read_until_it_agrees(claimed_ms: float, readings: int) -> None:
    candidate = Bursts(5000.0)
    clock = read_until_agreed(candidate, Stopwatch("cpu"), "cpu", claimed_ms)
    assert clock is not None
    assert clock.call_ms == pytest.approx(5000.0, abs=500.0)
    assert candidate.made == readings * 2 * BURSTS["cpu"]


def test_whoever_listens_hears_all_and_ends() -> None:
    before = threading.active_count()
    with listener() as heard:
        for _ in range(10_000):  # more than a pipe would hold
            assert os.write(heard, b"0" * 10) == 10
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(heard)


def test_a_burst_goes_before_the_clock_is_read() -> None:
    lengths = []

    class Counted(Bursts):
        def burst(self, calls: int) -> Pace:
            lengths.append(calls)
            return super().burst(calls)

    for device, call_ms in (("cuda", 1.0), ("cuda", 40.0), ("cpu", 1.0)):
        warm_up(Counted(call_ms), device, call_ms)
    assert lengths == [20, 7, 6]


def test_without_room_for_bursts_there_is_no_clock() -> None:
    candidate = Bursts(1.0)
    candidate.most_calls = 2
    warm_up(candidate, "cpu", 1.0)
    assert candidate.made == 0
    assert read_until_agreed(candidate, Stopwatch("cpu"), "cpu", 1.0) is None


def test_a_process_that_waits_is_given_no_time_on_a_core_and_one_that_works_is() -> None:
    script = "import time; print(flush=True); input(); start = time.process_time()\n"
    script += "while time.process_time() < start + 0.2: pass\nprint(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        idle = linux.cpu_time_s(process.pid)
        time.sleep(0.2)
        assert linux.cpu_time_s(process.pid) == pytest.approx(idle, abs=0.05)
        process.stdin.write("\n")
        process.stdout.readline()
        assert linux.cpu_time_s(process.pid) == pytest.approx(idle + 0.2, abs=0.05)
        process.stdin.write("\n")
    with pytest.raises(OSError, match="argument"):
        linux.cpu_time_s(process.pid)
