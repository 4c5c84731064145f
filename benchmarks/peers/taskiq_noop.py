"""taskiq on a Redis stream, which acknowledges: one worker, one task at a time; results are looked for every 1 ms."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

if TYPE_CHECKING:
    from benchmarks.peers.measure import measure_all
else:  # this runs where its own folder is all that there is of drkq
    from measure import measure_all

URL = os.environ["PEER_URL"]
broker = RedisStreamBroker(URL, socket_timeout=None).with_result_backend(RedisAsyncResultBackend(URL))


@broker.task(task_name="noop")  # type: ignore[untyped-decorator]  # it is not installed here
async def noop() -> None:
    """Do nothing."""


async def ask() -> None:
    """Await tasks."""
    await broker.startup()

    async def call() -> None:
        task = await noop.kiq()
        await task.wait_result(check_interval=0.001, timeout=60)

    await measure_all(call)
    await broker.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        command = ["taskiq", "worker", "--workers", "1", "--max-async-tasks", "1", "taskiq_noop:broker"]
        os.execv(os.path.join(os.path.dirname(sys.executable), "taskiq"), command)
    else:
        asyncio.run(ask())
