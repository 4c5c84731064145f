"""What the queue costs: awaited no-ops, beside other queues on the same Redis in the same run.

`PYTHONPATH=. python benchmarks/queue_latency.py [--peers PYTHON]` starts a redis-server and one Celery worker with one
pool child, whose desk claims, answers and records as always but judges nothing, and awaits evaluations of different
kernels, 1, 100 and 1,000 at once. `--peers` names the Python of an environment with arq, taskiq, taskiq-redis and
dramatiq; each of them gets one worker process that does one task at a time. One JSON line for each queue and row.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from measure import Rows, measure

from drkernel_q.queue.client import EvaluationQueue
from tests.need import ROOT, redis_server
from tests.queue.requests import echo_request

PEERS = ("arq", "taskiq", "dramatiq")


async def ours(url: str, rows: Rows) -> None:
    """Await evaluations that nobody makes."""
    async with EvaluationQueue(url) as queue:
        await measure("drkq", lambda: queue.evaluate(echo_request(fresh=True)), rows)


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@click.command(help=__doc__)
@click.option("--peers", type=click.Path(path_type=Path), help="Python of an environment with the other queues.")
@click.option("--rows", default="1:300,100:3000,1000:6000", show_default=True, help="IN_FLIGHT:COUNT, by comma.")
def main(peers: Path | None, rows: str) -> None:
    """Measure each queue, one after the other, on an empty Redis."""
    port = free_port()
    server = redis_server()
    assert server is not None, "no redis-server"
    folder = tempfile.mkdtemp()
    redis = subprocess.Popen([server, "--port", str(port), "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    environment = os.environ | {"NOOP_PORT": str(port), "DRKQ_BROKER_URL": url, "PYTHONPATH": str(ROOT)}
    with open(Path(folder) / "worker.log", "wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.queue.echo_worker", "--device", "cpu"],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        time.sleep(6.0)
        counts = [tuple(map(int, row.split(":"))) for row in rows.split(",")]
        asyncio.run(ours(url, [(in_flight, count) for in_flight, count in counts]))
        worker.kill()
        for name in PEERS if peers is not None else ():
            script = ROOT / f"benchmarks/peers/{name}_noop.py"
            subprocess.run([str(peers), str(script), "client", rows], env=environment, check=True)
    finally:
        worker.kill()
        redis.kill()


if __name__ == "__main__":
    main()
