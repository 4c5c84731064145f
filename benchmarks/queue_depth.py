"""A hundred thousand evaluations in the queue: how fast they get there, what they weigh, how long they take to drain.

`PYTHONPATH=. python benchmarks/queue_depth.py` runs a redis-server with an append-only file, one client that bounds
nothing, and one worker that only does what the queue asks of it. The worker is stopped while the queue fills. Then
one interactive request is timed past all of them, and the worker drains for `--drain-s` seconds; the rest is
extrapolated. Each request has the softmax problem and a kernel of `--kernel-bytes` that nobody else asks for.

One JSON line. `limits` are numbers of requests like these at which something ends, and `first_limit` is the least.
"""

import asyncio
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from redis import Redis
from redis.exceptions import RedisError

from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.kernel import Kernel
from drkernel_q.local.broker import find_server
from drkernel_q.problem import Problem
from drkernel_q.queue import keys
from drkernel_q.queue.client import MAX_DEPTH, EvaluationQueue
from drkernel_q.queue.connection import connect
from drkernel_q.request import Priority

ROOT = Path(__file__).parents[1]
PROBLEM = Problem(name="softmax", source=(ROOT / "drkernel_q/problems/level1/softmax.py").read_text())
KERNEL = (ROOT / "examples/softmax.py").read_text()
MIB = 2**20
#: What compose.yaml gives the broker.
BROKER_BYTES = 2**30
#: Submissions on their way at a time.
IN_FLIGHT = 500


def request(kernel_bytes: int, priority: Priority = Priority.TRAINING) -> EvaluationRequest:
    """Ask for what nobody else asks for."""
    source = f"{KERNEL}# {uuid.uuid4().hex}\n"
    return EvaluationRequest(
        id=uuid.uuid4().hex,
        problem=PROBLEM,
        kernel=Kernel(source=source + "#" * (kernel_bytes - len(source))),
        priority=priority,
        submitted_at="2026-01-01T00:00:00+00:00",
    )


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a server that writes an append-only file and evicts nothing; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes"}
    options |= {"maxmemory": 16 * BROKER_BYTES, "maxmemory-policy": "noeviction"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([find_server(), *words], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        _until(lambda: Redis.from_url(url).ping())
        yield url
    finally:
        process.kill()
        process.wait()


@contextmanager
def worker(url: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker that does nothing."""
    command = [sys.executable, "-m", "benchmarks.peers.drkq_noop", "worker", url]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        _until(lambda: connect(url).smembers(keys.WORKERS))
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until(done: Any, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if done():
                return
        except RedisError:
            pass
        time.sleep(0.05)
    raise click.ClickException("a service did not start")


async def fill(queue: EvaluationQueue, count: int, kernel_bytes: int) -> list[float]:
    """Submit so many; return when each thousandth was there."""
    marks = [time.perf_counter()]
    numbers = itertools.count()

    async def submit() -> None:
        while (number := next(numbers)) < count:
            await queue.submit(request(kernel_bytes))
            if number % 1000 == 999:
                marks.append(time.perf_counter())

    await asyncio.gather(*(submit() for _ in range(IN_FLIGHT)))
    return marks


async def measure(
    url: str, noop: "subprocess.Popen[bytes]", folder: Path, count: int, kernel_bytes: int, drain_s: float
) -> dict[str, Any]:
    """Fill, look, and drain for a while."""
    redis = connect(url)
    async with EvaluationQueue(url, max_depth=10 * count) as queue:
        os.killpg(noop.pid, signal.SIGSTOP)
        empty, small = int(redis.info("memory")["used_memory"]), _own_bytes()
        marks = await fill(queue, count, kernel_bytes)
        memory = redis.info("memory")
        deep: dict[str, Any] = {
            "queued": await queue.depth("eval.cpu"),
            "request_bytes": len(request(kernel_bytes).model_dump_json()),
            "submit_per_s": round(count / (marks[-1] - marks[0])),
            "submit_per_s_last_tenth": round(count / 10 / (marks[-1] - marks[-1 - count // 10_000])),
            "broker_mib": round((int(memory["used_memory"]) - empty) / MIB),
            "broker_rss_mib": round(int(memory["used_memory_rss"]) / MIB),
            "broker_bytes_each": round((int(memory["used_memory"]) - empty) / count),
            "aof_mib": round(sum(path.stat().st_size for path in folder.rglob("*.aof")) / MIB),
            "client_bytes_each": round((_own_bytes() - small) / count),
        }
        os.killpg(noop.pid, signal.SIGCONT)
        start = time.perf_counter()
        await queue.evaluate(request(kernel_bytes, Priority.INTERACTIVE), timeout_s=120)
        deep["interactive_s"] = round(time.perf_counter() - start, 2)
        before, start = await queue.depth("eval.cpu"), time.perf_counter()
        await asyncio.sleep(drain_s)
        drained = before - await queue.depth("eval.cpu")
        deep["drain_per_s"] = round(drained / (time.perf_counter() - start), 1)
        os.killpg(noop.pid, signal.SIGKILL)
        redis.flushall()  # so that the client has nothing to cancel, one by one
    return deep


def _own_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def judge(found: dict[str, Any], evaluation_s: float, devices: int) -> dict[str, Any]:
    """Extrapolate, and name what ends first."""
    limits = {
        "a client's list (MAX_DEPTH): submit waits": MAX_DEPTH,
        "a broker of 1 GiB (compose.yaml): submit waits": BROKER_BYTES // found["broker_bytes_each"],
        "a client of 8 GiB": 8 * 2**30 // max(1, found["client_bytes_each"]),
    }
    return found | {
        "drain_h_one_no_op_worker": round(found["queued"] / found["drain_per_s"] / 3600, 2),
        f"drain_h_{devices}_devices_of_{evaluation_s:g}_s": round(found["queued"] * evaluation_s / devices / 3600, 2),
        "limits": limits,
        "first_limit": min(limits, key=lambda name: limits[name]),
        "load": round(os.getloadavg()[0], 2),
    }


@click.command(help=__doc__)
@click.option("--count", default=100_000, show_default=True, type=click.IntRange(10_000), help="Evaluations to queue.")
@click.option("--kernel-bytes", default=4000, show_default=True, help="Length of a kernel, about that of a model's.")
@click.option("--drain-s", default=20.0, show_default=True, help="Seconds of draining that the rest is judged by.")
@click.option("--evaluation-s", default=3.3, show_default=True, help="Device time of an evaluation (docs/log.md).")
@click.option("--devices", default=8, show_default=True, help="Devices that share them.")
def main(count: int, kernel_bytes: int, drain_s: float, evaluation_s: float, devices: int) -> None:
    """Measure once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with broker(folder) as url, worker(url, folder / "worker.log") as noop:
            found = asyncio.run(measure(url, noop, folder, count, kernel_bytes, drain_s))
    click.echo(json.dumps({"benchmark": "queue_depth"} | judge(found, evaluation_s, devices)))


if __name__ == "__main__":
    main()
