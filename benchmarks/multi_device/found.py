"""What figures of several devices come to: ratios, differences, what limits, and whether a bound holds. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Times the evaluations of one device that two must give, as a share of the number of devices: 1.9 of 2.
SCALING = 0.95
#: Most that anything on another device may change a speedup or its scatter, percent.
INTERFERENCE_PERCENT = 0.5
#: Most that faults on another device may change how long an evaluation takes, percent.
PACE_PERCENT = 10.0
#: Most that losses and norms of gradients of one and of several ranks may differ, relative: float32, another order.
LOSS_TOLERANCE = 1e-4
#: Share of the host's cores, or of the time of a device, from which on it is called the limit.
FULL = 0.9

BROKEN, NOT_MEASURED = 1, 3

Line = dict[str, Any]


def line(part: str, finding: str, facts: Mapping[str, Any], holds: bool | None = None, bound: str = "") -> Line:
    """Put a finding into words for machines; with a bound, whether it holds, or None if that is not known."""
    judged = {"bound": bound, "holds": holds} if bound else {}
    return {"benchmark": "multi_device", "part": part, "finding": finding, **facts, **judged}


def exit_code(lines: Iterable[Line]) -> int:
    """0 if every bound holds, 1 if one does not, and else 3 if something was not measured."""
    lines = list(lines)
    if any(each.get("holds") is False for each in lines):
        return BROKEN
    unknown = any("not_run" in each or ("bound" in each and each["holds"] is None) for each in lines)
    return NOT_MEASURED if unknown or not lines else 0


def arms(devices: int) -> list[int]:
    """With how many devices to measure: 1, 2, 4 and so on, and all of them."""
    powers = [2**power for power in range(devices.bit_length()) if 2**power <= devices]
    return sorted({*powers, devices})


def scaled(one: Line, many: Line) -> Line:
    """Compare an arm of several devices with the one of one device."""
    ratio = many["a_minute"] / one["a_minute"] if one["a_minute"] else 0.0
    return {
        "devices": len(many["devices"]),
        "a_minute": [one["a_minute"], many["a_minute"]],
        "ratio": round(ratio, 3),
        "least": round(SCALING * len(many["devices"]), 2),
        "limit": limit(one, many),
    }


def limit(one: Line, many: Line) -> str:
    """Name what keeps several devices from more: what is full, or else the stage that became slower."""
    host = many["host"].get("cores_busy_share")
    if host is not None and host >= FULL:
        return f"host cores: {host:.0%} busy"
    alone = statistics.fmean(each["held_alone_share"] for each in many["devices"].values())
    if alone >= FULL:
        return f"devices: held alone for timing and profile {alone:.0%} of the time"
    lanes = statistics.fmean(each["lanes_busy_share"] for each in many["devices"].values())
    if lanes < FULL:
        return f"queue and client: lanes are busy {lanes:.0%} of the time"
    grown = {name: many["stages_s"][name] - one["stages_s"].get(name, 0.0) for name in many["stages_s"]}
    grown = {name: seconds for name, seconds in grown.items() if name != "total"}
    if not grown or max(grown.values()) <= 0:
        return "nothing: no stage is slower than with one device"
    name = max(grown, key=lambda each: grown[each])
    return f"stage {name}: {one['stages_s'].get(name, 0.0):.3f} s with one device, {many['stages_s'][name]:.3f} s here"


def scatter(values: Sequence[float]) -> Line:
    """Median and coefficient of variation of repeated figures."""
    spread = 100 * statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None
    found = None if not values else round(statistics.median(values), 5)
    return {"runs": len(values), "median": found, "cv_percent": None if spread is None else round(spread, 3)}


def disturbance(quiet: Sequence[float], beside: Sequence[float]) -> Line:
    """Say how far the median moved, percent, and the coefficient of variation, points of percent.

    The noise is the standard error of the difference of two medians of so many figures with such a scatter.
    """
    if len(quiet) < 2 or len(beside) < 2:
        return {"median_percent": None, "noise_percent": None, "cv_points": None}
    before, after = scatter(quiet), scatter(beside)
    noise = math.hypot(*(each["cv_percent"] * math.sqrt(math.pi / 2 / each["runs"]) for each in (before, after)))
    return {
        "median_percent": round(100 * (after["median"] / before["median"] - 1), 3),
        "noise_percent": round(noise, 3),
        "cv_points": round(after["cv_percent"] - before["cv_percent"], 3),
    }


def undisturbed(found: Line) -> bool | None:
    """Whether median and scatter stay within the bound; less scatter is no disturbance. None: too few figures."""
    if found["median_percent"] is None:
        return None
    moved, scattered = abs(found["median_percent"]), found["cv_points"]
    return bool(moved <= INTERFERENCE_PERCENT and scattered <= INTERFERENCE_PERCENT)


def largest_difference(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the largest relative difference of figures that should be equal; None if they cannot be compared."""
    if not first or len(first) != len(second):
        return None
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(first, second, strict=True))
