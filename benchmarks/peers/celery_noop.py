"""Celery by itself, as it is used most: its result backend, one thread for each task that is awaited."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from celery import Celery

from benchmarks.peers.measure import measure_all

app = Celery("noop", broker=os.environ["PEER_URL"], backend=os.environ["PEER_URL"])
app.conf.update(worker_prefetch_multiplier=1, task_acks_late=True)


@app.task  # type: ignore[untyped-decorator]  # Celery has no types
def noop() -> None:
    """Do nothing."""


async def ask() -> None:
    """Await tasks in threads."""
    pool = ThreadPoolExecutor(64)
    loop = asyncio.get_running_loop()
    await measure_all(lambda: loop.run_in_executor(pool, lambda: noop.delay().get(timeout=60)))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        app.worker_main(["worker", "-P", "prefork", "-c", "1", "-l", "WARNING", "--without-gossip", "--without-mingle"])
    else:
        asyncio.run(ask())
