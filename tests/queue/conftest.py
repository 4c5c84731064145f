"""A real broker and real Celery workers for the queue's tests, each a process that the test owns."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from drkernel_q.local.process import tether
from drkernel_q.persist import Persister
from drkernel_q.queue import keys
from drkernel_q.queue.connection import connect
from drkernel_q.store import Store
from tests.need import PATIENT_S, redis_server, require

WORKER = [sys.executable, "-m", "tests.queue.echo_worker"]
#: A worker whose wall clock is ahead of the broker's.
OTHER_CLOCK = """
import time
wall_clock = time.time
time.time = lambda: wall_clock() + SECONDS
from tests.queue.echo_worker import main
main()
"""


class Broker:
    """A redis-server on a socket in a folder of its own; it can be killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.prefix: list[str] = []
        """What is put in front of the command, to run it on another host."""
        self.url = f"redis+socket://:secret@{folder}/b.sock?virtual_host=0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        server = redis_server()
        assert server is not None
        # fmt: off
        self.process = subprocess.Popen(
            [*self.prefix, server, "--port", "0", "--unixsocket", str(self.folder / "b.sock"),
             "--dir", str(self.folder), "--requirepass", "secret", "--save", "", "--appendfsync", "always",
             "--loglevel", "warning", *self.options],
            stdout=subprocess.DEVNULL,
            preexec_fn=tether(signal.SIGKILL),  # noqa: PLW1509 - one prctl, no locks
        )
        # fmt: on
        with self.client() as client:
            client.ping()

    def stop(self, kind: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(kind)
            self.process.wait(PATIENT_S)
            self.process = None

    def client(self) -> Redis:
        return connect(self.url)


@contextmanager
def own_broker(*options: str, prefix: Sequence[str] = ()) -> Iterator[Broker]:
    """Run a broker with these options of redis-server."""
    require("redis-server (or valkey-server)", redis_server())
    folder = Path(tempfile.mkdtemp(prefix="dq-b-", dir="/tmp"))
    broker = Broker(folder, *options)
    broker.prefix = list(prefix)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with own_broker() as broker:
        yield broker


StartWorker = Callable[..., "subprocess.Popen[bytes]"]


@contextmanager
def worker_starter(log_path: Path) -> Iterator[StartWorker]:
    """Give a function that starts echo workers; all that they are is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(broker: Broker, *, name: str = "w1", device: str = "cpu", clock_s: float = 0.0, **order: float) -> object:
        environment = os.environ | {"DRKQ_BROKER_URL": broker.url, "ECHO_NAME": name}
        environment |= {f"ECHO_{key.upper()}": str(value) for key, value in order.items()}
        command = [sys.executable, "-c", OTHER_CLOCK.replace("SECONDS", str(clock_s))] if clock_s else WORKER
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [*command, "--device", device],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tether(signal.SIGKILL),  # noqa: PLW1509 - one prctl, no locks
            )
        started.append(process)
        with broker.client() as client:
            wait_until(lambda: client.exists(keys.worker(name)), "the worker is registered", process)
        return process

    try:
        yield start  # type: ignore[misc]
    finally:
        for process in started:
            kill_tree(process)


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    with worker_starter(tmp_path / "workers.log") as start:
        yield start


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with one echo worker on the cpu, for all tests of a module that leave both as they were."""
    log = tmp_path_factory.mktemp("service") / "workers.log"
    with own_broker() as broker, worker_starter(log) as start:
        start(broker)
        yield broker


@contextmanager
def persisting(broker: Broker, store: Store) -> Iterator[threading.Event]:
    """Run a persister in a thread for the length of the block."""
    stop = threading.Event()
    thread = threading.Thread(target=Persister(broker.url, store).run, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(PATIENT_S)
        assert not thread.is_alive()


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that leads its session, and all of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENT_S)


def wait_until(
    condition: Callable[[], object],
    what: str,
    process: "subprocess.Popen[bytes] | None" = None,
    limit_s: float = PATIENT_S,
) -> None:
    """Wait for a condition of another process; fails by name when it does not come, or the process ends."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (RedisError, OSError):
            pass
        assert process is None or process.poll() is None, f"the process ended before {what}"
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s: {what}")
