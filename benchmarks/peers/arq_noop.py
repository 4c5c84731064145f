"""A no-op through arq: one worker process, one job at a time."""

import asyncio
import subprocess
import sys
import time

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import run_worker
from measure import Rows, measure, settings


async def noop(_: dict[str, object]) -> None:
    """Do nothing."""


async def client(port: int, rows: Rows) -> None:
    """Await no-ops."""
    pool = await create_pool(RedisSettings(port=port))

    async def one() -> None:
        job = await pool.enqueue_job("noop")
        assert job is not None
        await job.result(timeout=60, poll_delay=0.001)

    await measure("arq", one, rows)
    await pool.aclose()


def main() -> None:
    """Serve, or start a server and measure."""
    port, rows = settings()
    if sys.argv[1] == "worker":
        run_worker(
            {"functions": [noop], "redis_settings": RedisSettings(port=port), "max_jobs": 1, "poll_delay": 0.001}
        )
        return
    worker = subprocess.Popen([sys.executable, __file__, "worker", *sys.argv[2:]], stderr=subprocess.DEVNULL)
    try:
        time.sleep(2.0)
        asyncio.run(client(port, rows))
    finally:
        worker.kill()


if __name__ == "__main__":
    main()
