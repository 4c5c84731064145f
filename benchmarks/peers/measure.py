"""How a queue's awaited no-ops are counted and timed; the same for every queue, with the standard library alone."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

#: How many are in flight, and how many there are in all.
Rows = list[tuple[int, int]]


def settings() -> tuple[int, Rows]:
    """Read the port of Redis, and `IN_FLIGHT:COUNT` from the last argument, by comma."""
    rows = [tuple(map(int, row.split(":"))) for row in sys.argv[-1].split(",")]
    return int(os.environ["NOOP_PORT"]), [(in_flight, count) for in_flight, count in rows]


async def measure(name: str, one: Callable[[], Awaitable[object]], rows: Rows) -> None:
    """Print one JSON line for each row: tasks a second, and the milliseconds that one is awaited for."""
    for _ in range(20):
        await one()
    for in_flight, count in rows:
        waits: list[float] = []
        left = iter(range(count))

        async def keep_going(waits: list[float] = waits, left: object = left) -> None:
            for _ in left:  # type: ignore[attr-defined]
                start = time.perf_counter()
                await one()
                waits.append(time.perf_counter() - start)

        start = time.perf_counter()
        await asyncio.gather(*(keep_going() for _ in range(in_flight)))
        seconds = time.perf_counter() - start
        waits.sort()
        row = {
            "benchmark": "queue_latency",
            "queue": name,
            "in_flight": in_flight,
            "tasks": count,
            "a_second": round(count / seconds, 1),
            "p50_ms": round(1e3 * waits[count // 2], 2),
            "p99_ms": round(1e3 * waits[min(int(0.99 * count), count - 1)], 2),
        }
        print(json.dumps(row), flush=True)
