"""What the benchmark of several devices makes of its figures, and that the host's load is read."""

import math
import os
import time
from typing import Any

import pytest

from benchmarks.multi_device.found import (
    BROKEN,
    NOT_MEASURED,
    arms,
    disturbance,
    exit_code,
    largest_difference,
    limit,
    line,
    scaled,
    undisturbed,
)
from benchmarks.multi_device.host_load import HostLoad


def an_arm(rate: float, devices: int, *, host: float | None = 0.5, alone: float = 0.4, lanes: float = 0.97) -> Any:
    shares = {"held_alone_share": alone, "lanes_busy_share": lanes}
    return {
        "a_minute": rate,
        "devices": {f"cuda:{number}": shares for number in range(devices)},
        "host": {"cores_busy_share": host},
        "stages_s": {"correctness": 0.6 * devices, "timing": 0.5, "total": 1.1 * devices},
    }


@pytest.mark.parametrize(("devices", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_arms_double_and_end_with_all(devices: int, expected: list[int]) -> None:
    assert arms(devices) == expected


def test_a_ratio_names_what_limits_it() -> None:
    found = scaled(an_arm(30.0, 1), an_arm(54.0, 2))
    assert (found["ratio"], found["least"], found["a_minute"]) == (1.8, 1.9, [30.0, 54.0])
    assert found["limit"] == "stage correctness: 0.600 s with one device, 1.200 s here"
    one = an_arm(30.0, 1)
    assert limit(one, an_arm(54.0, 2, host=0.95)).startswith("host cores: 95% busy")
    assert limit(one, an_arm(54.0, 2, host=None, alone=0.93)).startswith("devices: held alone")
    assert limit(one, an_arm(54.0, 2, lanes=0.5)) == "queue and client: lanes are busy 50% of the time"
    assert limit(one, one).startswith("nothing")


def test_disturbance_is_of_the_median_and_of_the_scatter() -> None:
    quiet = [1.99, 2.0, 2.01]
    moved = disturbance(quiet, [2.02 * value / 2 for value in quiet])
    assert (moved["median_percent"], moved["cv_points"]) == (1.0, 0.0)
    assert moved["noise_percent"] == pytest.approx(0.5 * (math.pi / 3) ** 0.5, abs=1e-3), "two medians of three"
    assert undisturbed(moved) is False
    assert undisturbed(disturbance(quiet, [1.9, 2.0, 2.1])) is False, "as fast, and less sure"
    assert undisturbed(disturbance(quiet, [2.0, 2.0, 2.001])) is True, "less scatter is no harm"
    assert undisturbed(disturbance(quiet, [2.0])) is None


def test_differences_are_relative_and_of_series_of_one_length() -> None:
    assert largest_difference([1.0, -2.0], [1.0, -2.002]) == pytest.approx(0.001, rel=1e-2)
    assert largest_difference([0.0], [0.0]) == 0.0
    assert largest_difference([1.0], []) is None


def test_the_exit_code_tells_whether_every_bound_held() -> None:
    held, broken = line("a", "b", {}, True, "at least 1"), line("a", "b", {"ratio": 0.5}, False, "at least 1")
    unknown, missing = line("a", "b", {}, None, "at least 1"), line("a", "end", {"not_run": "no device"})
    assert "holds" not in line("a", "b", {"ratio": 1})
    assert exit_code([held, line("a", "b", {"ratio": 1})]) == 0
    assert exit_code([held, missing]) == exit_code([unknown]) == exit_code([]) == NOT_MEASURED
    assert exit_code([broken, missing]) == BROKEN


def test_the_load_of_the_host_is_that_of_the_block() -> None:
    with HostLoad(["cpu"]) as load:
        ends_at = time.monotonic() + 0.05
        while time.monotonic() < ends_at:
            pass
    assert load.host["cores"] == len(os.sched_getaffinity(0))
    assert load.host["cores_busy_share"] is None or 0 <= load.host["cores_busy_share"] <= 1
    assert load.device("cpu") == {}
