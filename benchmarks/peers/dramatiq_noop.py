"""dramatiq: one process with one thread; results are awaited in threads, since it has no other way."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

if TYPE_CHECKING:
    from benchmarks.peers.measure import measure_all
else:  # this runs where its own folder is all that there is of drkq
    from measure import measure_all

URL = os.environ["PEER_URL"]
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)  # type: ignore[untyped-decorator]  # it is not installed here
def noop() -> int:
    """Do nothing; None would not be stored."""
    return 0


async def ask() -> None:
    """Await messages in threads."""
    pool = ThreadPoolExecutor(64)
    loop = asyncio.get_running_loop()
    await measure_all(lambda: loop.run_in_executor(pool, lambda: noop.send().get_result(block=True, timeout=60_000)))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        command = ["dramatiq", "--processes", "1", "--threads", "1", "dramatiq_noop"]
        os.execv(os.path.join(os.path.dirname(sys.executable), "dramatiq"), command)
    else:
        asyncio.run(ask())
