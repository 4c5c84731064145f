"""A no-op through taskiq: one worker process, one task at a time, a Redis list and the results in Redis."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from measure import Rows, measure, settings
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

URL = f"redis://127.0.0.1:{os.environ.get('NOOP_PORT', '6379')}"
broker = ListQueueBroker(URL).with_result_backend(RedisAsyncResultBackend(URL))


@broker.task(task_name="noop")
async def noop() -> None:
    """Do nothing."""


async def client(rows: Rows) -> None:
    """Await no-ops."""
    await broker.startup()

    async def one() -> None:
        task = await noop.kiq()
        await task.wait_result(check_interval=0.001, timeout=60)

    await measure("taskiq", one, rows)
    await broker.shutdown()


def main() -> None:
    """Start a server and measure."""
    _, rows = settings()
    command = [str(Path(sys.executable).with_name("taskiq")), "worker", "taskiq_noop:broker"]
    command += ["--workers", "1", "--max-async-tasks", "1", "--log-level", "ERROR"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3.0)
        asyncio.run(client(rows))
    finally:
        worker.terminate()


if __name__ == "__main__":
    main()
