"""What all sides of `queue_latency.py` share; it runs in each one's environment, so it imports nothing but Python."""

import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable


async def measure(call: Callable[[], Awaitable[object]], tasks: int, in_flight: int) -> dict[str, float]:
    """Await `tasks` calls with `in_flight` of them on their way; return rate and quantiles of the wait for one."""
    for _ in range(min(50, tasks)):
        await call()
    left = iter(range(tasks))
    waits_s: list[float] = []

    async def work() -> None:
        for _ in left:
            start = time.perf_counter()
            await call()
            waits_s.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    elapsed_s = time.perf_counter() - start
    waits_s.sort()

    def quantile_ms(share: float) -> float:
        return round(1000 * waits_s[min(math.floor(share * len(waits_s)), len(waits_s) - 1)], 3)

    return {
        "in_flight": in_flight,
        "tasks": tasks,
        "tasks_per_s": round(tasks / elapsed_s, 1),
        "p50_ms": quantile_ms(0.5),
        "p99_ms": quantile_ms(0.99),
    }


async def measure_all(call: Callable[[], Awaitable[object]]) -> None:
    """Measure as the command line says, `TASKS IN_FLIGHT` and so on; print one JSON line for each pair."""
    numbers = [int(text) for text in sys.argv[3:]]
    for tasks, in_flight in zip(numbers[::2], numbers[1::2], strict=True):
        print(json.dumps(await measure(call, tasks, in_flight)), flush=True)
