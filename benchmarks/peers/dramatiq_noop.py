"""A no-op through dramatiq: one worker process with one thread, and the results in Redis."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from measure import Rows, measure, settings

URL = f"redis://127.0.0.1:{os.environ.get('NOOP_PORT', '6379')}"
backend = RedisBackend(url=URL)
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=backend))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def noop() -> None:
    """Do nothing."""


async def client(rows: Rows) -> None:
    """Await no-ops, each in a thread, since its client blocks."""

    async def one() -> None:
        message = noop.send()
        await asyncio.to_thread(message.get_result, block=True, timeout=60_000)

    await measure("dramatiq", one, rows)


def main() -> None:
    """Start a server and measure."""
    _, rows = settings()
    command = [sys.executable, "-m", "dramatiq", "dramatiq_noop", "--processes", "1", "--threads", "1"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3.0)
        asyncio.run(client(rows))
    finally:
        worker.terminate()


if __name__ == "__main__":
    main()
