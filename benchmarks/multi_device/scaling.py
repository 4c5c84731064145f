"""Evaluations a minute of the same kernels on one device and on several, and what keeps several from more."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.evaluate_throughput import ALONE, summary, variant
from benchmarks.faults import described
from benchmarks.multi_device.found import SCALING, Line, arms, scaled
from benchmarks.multi_device.host_load import HostLoad
from benchmarks.multi_device.site import Bench, Order, Site
from drkernel_q.evaluation import Evaluation, Reply
from drkernel_q.local.process import resolve_devices

#: Longest time for `drkq up`.
UP_S = 240.0
#: Between two lines about an arm that goes on, which may be killed.
_SO_FAR_S = 30.0


async def scaling(order: Order, folder: Path) -> None:
    """Judge with one device, then with more; each number of devices has time for as many kernels."""
    chosen = arms(len(order.devices))
    found: list[Line] = []
    for number, count in enumerate(chosen):
        share = 1 / count / sum(1 / each for each in chosen)
        async with up(Site(folder / str(number)), order, order.devices[:count]) as bench:
            arm = await judged(bench, order, order.devices[:count], order.seconds * share)
        order.tell("scaling", "arm", arm)
        found.append(arm)
        if count > 1:
            facts = scaled(found[0], arm)
            bound = f"at least {SCALING * count:.2f} times one device"
            order.tell("scaling", "ratio", facts, facts["ratio"] >= SCALING * count, bound)
    if len(chosen) == 1:
        order.tell("scaling", "ratio", {"not_run": "there is one device only"})


@asynccontextmanager
async def up(site: Site, order: Order, devices: Sequence[str]) -> AsyncIterator[Bench]:
    """Start workers by `drkq up`, which finds the devices by itself where all of them are wanted, and end them."""
    everything = list(devices) == resolve_devices(["auto"])
    flags = [] if everything else [part for device in devices for part in ("--device", device)]
    began = time.monotonic()
    try:
        done = await site.drkq("up", *flags, timeout_s=UP_S)
        serving = sorted({worker["device"] for worker in (await site.status())["workers"]})
        facts = {"command": " ".join(("drkq up", *flags)), "devices": serving, "code": done.returncode}
        facts["seconds"] = round(time.monotonic() - began, 1)
        order.tell("scaling", "up", facts, serving == sorted(devices), "one worker on each device")
        async with site.stack(devices) as bench:
            yield bench
    finally:
        await site.drkq("down", timeout_s=60.0)


async def judged(bench: Bench, order: Order, devices: Sequence[str], seconds: float) -> Line:
    """Judge the kernels on these devices, and add up what came of it."""
    with HostLoad(devices) as load:
        began = time.monotonic()
        sources = _until(began + seconds, order.kernels)
        many = bench.judge_many(sources, order.kind, 2 * bench.lanes.total(), timing_budget_s=order.budget_s)
        replies: list[Reply] = []
        told = began
        async for reply in many:
            replies.append(reply)
            elapsed_s = time.monotonic() - began
            if time.monotonic() - told > _SO_FAR_S:
                told = time.monotonic()
                so_far = {"devices": list(devices), "evaluations": len(replies), "elapsed_s": round(elapsed_s, 1)}
                order.tell("scaling", "so far", so_far | {"a_minute": round(60 * len(replies) / elapsed_s, 1)})
    evaluations = [reply.evaluation for reply in replies if reply.evaluation is not None]
    if not evaluations:
        raise RuntimeError(f"nothing was judged on {', '.join(devices)}: {replies[:1]}")
    facts: Line = {"asked": len(replies), "elapsed_s": round(elapsed_s, 1)}
    facts |= summary([(each.durations_s["total"], each) for each in evaluations], elapsed_s)
    del facts["timed_share"]  # of one device; each has its own below
    facts["unclean"] = [described(each) for each in evaluations if not each.honest_and_correct][:5]
    shares = _by_device(evaluations, elapsed_s, bench.lanes)
    return facts | {"devices": {name: shares[name] | load.device(name) for name in devices}, "host": load.host}


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
