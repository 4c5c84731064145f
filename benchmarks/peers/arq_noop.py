"""arq: a worker with one job at a time; both sides look for news every 10 ms, by default it would be every 500."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

if TYPE_CHECKING:
    from benchmarks.peers.measure import measure_all
else:  # this runs where its own folder is all that there is of drkq
    from measure import measure_all

SETTINGS = RedisSettings.from_dsn(os.environ["PEER_URL"])


async def noop(_context: dict[Any, Any]) -> None:
    """Do nothing."""


async def ask() -> None:
    """Await jobs."""
    pool = await create_pool(SETTINGS)

    async def call() -> None:
        job = await pool.enqueue_job("noop")
        await job.result(poll_delay=0.01)

    await measure_all(call)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        Worker([noop], redis_settings=SETTINGS, max_jobs=1, poll_delay=0.01).run()
    else:
        asyncio.run(ask())
