"""Evaluations a minute of the same kernels on one device and on several, and what keeps several from more."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evaluate_throughput import ALONE, summary, variant
from benchmarks.faults import described
from benchmarks.host_load import HostLoad
from benchmarks.multi_device_found import SCALING, Line, arms, scaled
from benchmarks.multi_device_site import Order, Site
from drkernel_q.evaluation import Evaluation


async def scaling(order: Order, folder: Path) -> None:
    """Judge with one device, then with more; time is divided among them."""
    chosen = arms(len(order.devices))
    found: list[Line] = []
    for number, count in enumerate(chosen):
        site = Site(folder / str(number))
        arm = await judged(site, order, order.devices[:count], order.seconds / len(chosen))
        order.tell("scaling", "arm", arm)
        found.append(arm)
        if count > 1:
            facts = scaled(found[0], arm)
            bound = f"at least {SCALING * count:.2f} times one device"
            order.tell("scaling", "ratio", facts, facts["ratio"] >= SCALING * count, bound)
    if len(chosen) == 1:
        order.tell("scaling", "ratio", {"not_run": "there is one device only"})


async def judged(site: Site, order: Order, devices: Sequence[str], seconds: float) -> Line:
    """Judge the kernels on these devices, and add up what came of it."""
    began = time.monotonic()
    async with site.stack(devices) as bench:
        in_flight = 2 * sum(bench.lanes.values())
        started_s = time.monotonic() - began
        with HostLoad(devices) as load:
            began = time.monotonic()
            sources = _until(began + seconds, order.count)
            replies = [
                reply
                async for reply in bench.judge_many(sources, order.kind, in_flight, timing_budget_s=order.budget_s)
            ]
            elapsed_s = time.monotonic() - began
        evaluations = [reply.evaluation for reply in replies if reply.evaluation is not None]
        facts = {"asked": len(replies), "started_s": round(started_s, 1), "elapsed_s": round(elapsed_s, 1)}
        if not evaluations:
            raise RuntimeError(f"nothing was judged on {', '.join(devices)}: {replies[:1]}")
        facts |= summary([(each.durations_s["total"], each) for each in evaluations], elapsed_s)
        del facts["timed_share"]  # of one device; each has its own below
        facts["unclean"] = [described(each) for each in evaluations if not each.honest_and_correct][:5]
        shares = _by_device(evaluations, elapsed_s, bench.lanes)
        return facts | {
            "devices": {name: shares[name] | load.device(name) for name in devices},
            "host": load.host,
        }


def _until(ends_at: float, count: int) -> Iterator[str]:
    """Give the kernels, as long as there is time."""
    for number in range(count):
        if time.monotonic() > ends_at:
            return
        yield variant(number)


def _by_device(evaluations: Sequence[Evaluation], elapsed_s: float, lanes: dict[str, int]) -> dict[str, dict[str, Any]]:
    """How busy each device was kept: its lanes, and itself alone."""
    found: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        found[evaluation.environment.device].append(evaluation)
    return {
        name: {
            "evaluations": len(found[name]),
            "lanes": lanes[name],
            "lanes_busy_share": round(_seconds(found[name], "total") / elapsed_s / lanes[name], 3),
            "held_alone_share": round(_seconds(found[name], *ALONE) / elapsed_s, 3),
        }
        for name in lanes
    }


def _seconds(evaluations: Sequence[Evaluation], *stages: str) -> float:
    return sum(each.durations_s.get(stage, 0.0) for each in evaluations for stage in stages)
