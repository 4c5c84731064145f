"""Whether another device notices what goes wrong on one: an illegal access, an infinite loop, a quarantine."""

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults import KINDS, SOFTMAX, described, is_right
from benchmarks.multi_device.found import INTERFERENCE_PERCENT, PACE_PERCENT, Line
from benchmarks.multi_device.site import Bench, Order, Site, Stream, request
from drkernel_q.errors import DrkqError
from drkernel_q.evaluation import Reply
from drkernel_q.queue.handle import Handle
from drkernel_q.queue.registry import WorkerState
from tests.faulty import Faulty, named
from tests.sick import SickDevice

CRASH = named("segfault")
KERNEL_DEADLINE_S = 3.0
#: How often each fault is made.
TIMES = 2
#: Longest time for a device to be put out of service, and back into it.
QUARANTINE_S = 120.0
#: Longest time for those who wait to be told.
TOLD_S = 40.0
#: Starts a worker; the first device's finds a canary there that complains when it is told to.
_COMMAND = '[ "$2" = "$SICK" ] && export PYTHONPATH="$SICK_PATH"; exec "$PYTHON" -m workers "$@"'


class Span(NamedTuple):
    """What the neighbour gave in peace and beside faults, and in how many seconds each."""

    peace: tuple[list[Reply], float]
    unrest: tuple[list[Reply], float]


async def faults(order: Order, folder: Path) -> None:
    """Let the second device judge all the while, first in peace, then beside faults and a quarantine of the first."""
    if len(order.devices) < 2:
        order.tell("faults", "end", {"not_run": "there is one device only"})
        return
    first, second = order.devices[:2]
    site = Site(folder / "site")
    sick = SickDevice(folder)
    async with site.stack((first, second), sick_worker(sick, first)) as bench:
        workers = await processes(bench, second)
        async with Stream(bench, second, itertools.count(), timing_budget_s=order.budget_s) as stream:
            began = time.monotonic()
            await asyncio.sleep(order.seconds / 4)
            disturbed = time.monotonic()
            for faulty in KINDS[order.kind][:2]:  # an illegal access and a kernel that never ends, or the like
                await fault(order, faulty, bench, first)
            await quarantine(order, site, sick, bench, first)
            ended = time.monotonic()
        span = Span(
            (stream.since(began, disturbed), disturbed - began), (stream.since(disturbed, ended), ended - disturbed)
        )
        tell(order, stream, second, span, same=workers == await processes(bench, second))


def sick_worker(sick: SickDevice, device: str) -> tuple[str, ...]:
    """Return the command that starts workers, of which that of `device` finds the canary that complains."""
    names = (f"SICK={device}", f"SICK_PATH={sick.environment['PYTHONPATH']}", f"PYTHON={sys.executable}")
    return ("env", *names, "sh", "-c", _COMMAND, "worker")


async def processes(bench: Bench, device: str) -> set[tuple[str, int]]:
    """Name the lanes of a device, and their processes."""
    return {(card.id, card.pid) for card in await bench.cards(device)}


async def fault(order: Order, faulty: Faulty, bench: Bench, device: str) -> None:
    """Make one fault some times on the first device, and see what is said about it."""
    started = time.monotonic()
    replies = [
        await bench.judge(faulty.source, device, kernel_deadline_s=KERNEL_DEADLINE_S, timing_budget_s=order.budget_s)
        for _ in range(TIMES)
    ]
    mistakes = [each for reply in replies for each in wrong(reply, faulty)]
    facts = {"device": device, "made": len(replies), "wrong": mistakes}
    facts["seconds"] = round(time.monotonic() - started, 1)
    order.tell("faults", faulty.name, facts, not mistakes, "what is said about it is true")


async def quarantine(order: Order, site: Site, sick: SickDevice, bench: Bench, device: str) -> None:
    """Put the first device out of service, see it in `drkq status`, and put it back by the command."""
    sick.complain(1000)
    began = time.monotonic()
    handle = await bench.queue.submit(request(CRASH.source, kernel_deadline_s=KERNEL_DEADLINE_S), device=device)
    facts: Line = {"device": device, "out": await seen(bench, device, WorkerState.QUARANTINED)}
    facts["out_s"] = round(time.monotonic() - began, 1)
    quarantined = (await site.status())["quarantined"]
    facts |= {"shown": [each["device"] for each in quarantined], "reasons": [each["reason"] for each in quarantined]}
    facts["who_waited_was_told"] = await outcome(handle)
    sick.complain(0)
    began = time.monotonic()
    cleared = await site.drkq("worker", "--device", device, "--clear-quarantine", timeout_s=60.0)
    facts |= {"cleared": cleared.stderr.strip(), "back": await seen(bench, device, WorkerState.IDLE)}
    facts["back_s"] = round(time.monotonic() - began, 1)
    if facts["back"]:
        facts["wrong"] = wrong(await bench.judge(SOFTMAX, device, timing_budget_s=order.budget_s), None)
    facts["still_shown"] = [each["device"] for each in (await site.status())["quarantined"]]
    whole = facts["out"] and facts["shown"] == [device] and not facts["still_shown"] and facts.get("wrong") == []
    told = "is quarantined since" in facts["who_waited_was_told"]
    order.tell("faults", "quarantine", facts, whole and told, "it alone is shown, is cleared, and judges again")


async def outcome(handle: Handle) -> str:
    """Say what whoever waits for a device that is out of service gets."""
    try:
        reply = await handle.reply(TOLD_S)
    except DrkqError as error:
        return str(error)
    return str(wrong(reply, CRASH) or "an evaluation")


async def seen(bench: Bench, device: str, state: WorkerState) -> bool:
    """Wait until all lanes of a device are in a state; return whether they are in time."""
    give_up_at = time.monotonic() + QUARANTINE_S
    while time.monotonic() < give_up_at:
        if {card.state for card in await bench.cards(device)} == {state}:
            return True
        await asyncio.sleep(0.5)
    return False


def wrong(reply: Reply, faulty: Faulty | None) -> list[str]:
    """Say what is not true of what was said about a candidate; None is an honest one."""
    found = reply.evaluation or reply.failure
    assert found is not None
    return [] if is_right(faulty, found) else [described(found)]


def tell(order: Order, stream: Stream, device: str, span: Span, same: bool) -> None:
    """Compare the neighbour's evaluations in peace with those beside faults."""
    mistakes = [each for _, reply in stream.replies for each in wrong(reply, None)]
    facts: Line = {"device": device, "asked": stream.asked, "answered": stream.done, "wrong": mistakes[:5]}
    order.tell("faults", "neighbour", facts, not mistakes and stream.asked == stream.done, "all right, and none lost")
    order.tell("faults", "neighbour's processes", {"device": device, "same": same}, same, "the same ones all the while")
    peace, unrest = (figures(found, seconds) for found, seconds in span)
    facts = {"device": device, "peace": peace, "unrest": unrest}
    holds = None
    if peace["evaluations"] and unrest["evaluations"]:
        facts["pace_percent"] = round(100 * (unrest["p50_s"] / peace["p50_s"] - 1), 2)
        facts["speedup_percent"] = round(100 * (unrest["speedup"] / peace["speedup"] - 1), 3)
        holds = facts["pace_percent"] <= PACE_PERCENT and abs(facts["speedup_percent"]) <= INTERFERENCE_PERCENT
    bound = f"evaluations at most {PACE_PERCENT:g} % longer, and speedups within {INTERFERENCE_PERCENT} %"
    order.tell("faults", "neighbour's speed", facts, holds, bound)


def figures(replies: Sequence[Reply], seconds: float) -> Line:
    """How fast the neighbour judged, and what speedups it found."""
    timed = [reply.evaluation for reply in replies if reply.evaluation is not None and reply.evaluation.timing]
    mistakes = sum(bool(wrong(reply, None)) for reply in replies)
    found: Line = {"evaluations": len(timed), "wrong": mistakes, "a_minute": round(60 * len(replies) / seconds, 1)}
    if timed:
        found["p50_s"] = round(statistics.median(each.durations_s["total"] for each in timed), 3)
        found["speedup"] = round(statistics.median(each.speedup for each in timed if each.speedup), 5)
    return found
