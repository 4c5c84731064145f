"""No-op tasks through the queue: tasks a second, and how long one is awaited; beside the same in other task queues.

`PYTHONPATH=. python benchmarks/queue_latency.py` runs one worker with one slot and one asyncio client for each system,
one after the other, each on a redis-server of its own, and prints one JSON line for each system and number of tasks in
flight, then a table. The others are installed into virtual environments of their own, below `--environments` if that is
given (and kept there for the next time), else in a folder that is removed.

A no-op of drkq is not one of theirs: each is claimed, leased, finished and written to two streams, and its reply is a
whole document.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from redis import Redis
from redis.exceptions import RedisError

from drkernel_q.cli.output import emit_table
from drkernel_q.local.broker import find_server

PEERS = Path(__file__).parent / "peers"
#: What the environment of each needs; those without are measured in this one.
PACKAGES = {
    "drkq": (),
    "celery": (),
    "arq": ("arq",),
    "taskiq": ("taskiq<0.12", "taskiq-redis"),  # what taskiq-redis imports is gone from later ones
    "dramatiq": ("dramatiq[redis]",),
}
#: Longest time for a worker to answer its first task.
START_S = 60.0


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a server that keeps nothing; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)
        url = f"redis://127.0.0.1:{port}/0"
        try:
            with Redis.from_url(url) as client:
                while not _answers(client):
                    time.sleep(0.02)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(client: "Redis") -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def python_for(name: str, folder: Path) -> str:
    """Return the interpreter that has the packages of a system, made if it is not there."""
    if not PACKAGES[name]:
        return sys.executable
    environment = folder / name
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(python)


def measure(name: str, python: str, url: str, loads: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Run one worker and one client; yield what the client measured."""
    script = str(PEERS / f"{name}_noop.py")
    environment = os.environ | {"PEER_URL": url}
    here = Path(__file__).parents[1]
    environment["PYTHONPATH"] = str(PEERS) if PACKAGES[name] else str(here)
    options: dict[str, Any] = {"env": environment, "cwd": PEERS if PACKAGES[name] else here}
    with tempfile.TemporaryFile("w+") as log:
        worker = subprocess.Popen(
            [python, script, "worker", url], stdout=log, stderr=log, start_new_session=True, **options
        )
        try:
            numbers = [str(number) for load in loads for number in load]
            client = subprocess.run(
                [python, script, "client", url, *numbers], capture_output=True, text=True, check=False, **options
            )
            if client.returncode:
                log.seek(0)
                raise click.ClickException(f"{name} failed: {client.stderr[-2000:]} {log.read()[-2000:]}")
        finally:
            os.killpg(worker.pid, 9)
            worker.wait()
    for line in client.stdout.splitlines():
        yield {"benchmark": "queue_latency", "system": name} | json.loads(line)


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table, one system a row for each load."""
    columns = ("system", "in_flight", "tasks", "tasks_per_s", "p50_ms", "p99_ms")
    emit_table(columns, [tuple(row[name] for name in columns) for row in rows])


@click.command(help=__doc__)
@click.option("--systems", default=",".join(PACKAGES), show_default=True, help="Which, by comma.")
@click.option("--environments", type=click.Path(path_type=Path), help="Where the others are installed, and kept.")
@click.option("--tasks", default=5000, show_default=True, help="Tasks at 100 and at 1,000 in flight; a tenth at 1.")
def main(systems: str, environments: Path | None, tasks: int) -> None:
    """Measure one system after the other."""
    folder = environments or Path(tempfile.mkdtemp(prefix="drkq-peers-"))
    rows: list[dict[str, Any]] = []
    try:
        pythons = {name: python_for(name, folder) for name in systems.split(",")}
        for name, python in pythons.items():
            with redis_server() as url:
                for row in measure(name, python, url, [(tasks // 10, 1), (tasks, 100), (tasks, 1000)]):
                    click.echo(json.dumps(row | {"load": round(os.getloadavg()[0], 2)}))
                    rows.append(row)
    finally:
        if environments is None:
            shutil.rmtree(folder)
    show(rows)


if __name__ == "__main__":
    main()
