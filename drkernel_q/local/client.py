"""A command's side of the embedded stack: join it, start it, look at it, stop it."""

import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from drkernel_q.errors import Unavailable
from drkernel_q.local.control import Place, decode, encode, hold_lock, order, raise_error
from drkernel_q.settings import Settings
from drkernel_q.value import Value

#: Longest time for a stack to come up; the store may be migrated on the way.
START_S = 60.0
#: Longest time for a running stack to greet a command.
GREETING_S = 10.0
_POLL_S = 0.02


class StackStatus(Value):
    """What a running stack says about itself."""

    pid: int
    broker: str
    """Socket of the broker."""
    store: str
    """URL of the store, without password."""
    kept: bool
    """Whether it stays when no command uses it (`drkq up`)."""
    commands: int
    """Commands that use it now."""
    url: str
    """URL of the broker, with password."""


class _Connection:
    """An open connection; while it is open, the stack stays."""

    def __init__(self, place: Place) -> None:
        """Connect and be greeted.

        Raises:
            OSError: no stack runs here, or it is about to end.
        """
        self.sock = socket.socket(socket.AF_UNIX)
        self.file = self.sock.makefile("rb")
        try:
            self.sock.settimeout(GREETING_S)
            self.sock.connect(str(place.socket))
            self.token = place.token_file.read_text()
            self.sock.sendall(encode({"op": "hello", "token": self.token}))
            if not self.file.readline():
                raise ConnectionResetError
            self.sock.settimeout(None)
        except OSError:
            self.close()
            raise

    def ask(self, operation: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Send a request and yield every answer until the last one."""
        self.sock.sendall(encode({"op": operation, "token": self.token, **fields}))
        while answer := decode(self.file.readline()):
            raise_error(answer)
            yield answer
            if "say" not in answer:
                return
        raise Unavailable("The embedded stack ended while it was asked for something; see `drkq doctor`.")

    def close(self) -> None:
        """Hang up."""
        self.file.close()
        self.sock.close()


@contextmanager
def join(
    settings: Settings, devices: Sequence[str], report: Callable[[str], None], *, command: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the URL of a broker whose workers serve `devices`: the cluster's, or the embedded stack's.

    The stack is started if it does not run, stays while this context lasts, and ends with the last that uses it.
    `command` replaces `python -m workers`.

    Raises:
        NoBroker, NoStore, NoDevice, DeviceBusy, NoWorker: a part cannot be had.
    """
    if settings.broker_url is not None:
        yield settings.broker_url.get_secret_value()
        return
    with _interruptible():
        connection = _connect_or_start(settings, report, command)
    try:
        url = ""
        with _interruptible():
            for answer in connection.ask("need", devices=list(devices)):
                if "say" in answer:
                    report(answer["say"])
                url = answer.get("url", "")
        yield url
    finally:
        connection.close()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the block at once: asyncio would only cancel a task, which hears of it after the block."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield  # it is ignored, or somebody else's
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def keep(settings: Settings, devices: Sequence[str], report: Callable[[str], None]) -> StackStatus:
    """Start the stack and let it stay until `stop`."""
    with join(settings, devices, report):
        connection = _Connection(Place(settings))
        list(connection.ask("keep"))
        connection.close()
        found = status(settings)
        assert found is not None
        return found


def status(settings: Settings) -> StackStatus | None:
    """Ask a running stack about itself; None when none runs."""
    try:
        connection = _Connection(Place(settings))
    except OSError:
        return None
    try:
        answer = next(connection.ask("status"))
        return StackStatus.model_validate(answer["status"])
    finally:
        connection.close()


def stop(settings: Settings) -> bool:
    """Stop a running stack and wait until it is gone; return whether one ran."""
    place = Place(settings)
    try:
        connection = _Connection(place)
    except OSError:
        return False
    list(connection.ask("stop"))
    connection.close()
    with place.lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    return True


def _connect_or_start(settings: Settings, report: Callable[[str], None], command: Sequence[str]) -> _Connection:
    place = Place(settings)
    with suppress(OSError):
        return _Connection(place)
    place.prepare()
    report("starting the broker")
    deadline = time.monotonic() + START_S
    stack: _StackProcess | None = None
    while time.monotonic() < deadline:
        code = stack.poll() if stack is not None else 0
        if code:
            raise_error(_last_error(place.log))
            raise Unavailable(f"The embedded stack did not start; see {place.log}.")
        # One that has the lock is starting, or on its way out: then there is nothing to start yet.
        if code == 0 and (lock := hold_lock(place.lock)) is not None:
            lock.close()
            stack = _StackProcess(place, order(settings, command))
        with suppress(OSError):
            return _Connection(place)
        time.sleep(_POLL_S)
    raise Unavailable(f"The embedded stack did not answer within {START_S:g} s; see {place.log}.")


class _StackProcess:
    """A stack that this command has started; it is nobody's child to wait for, and may outlive the command."""

    def __init__(self, place: Place, document: dict[str, Any]) -> None:
        self._code: int | None = None
        reading, writing = os.pipe()
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "drkernel_q.local.stack"],
                os.environ | {"PYTHONPATH": paths},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(place.log), append, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(reading)
        with open(writing, "wb") as file:
            file.write(json.dumps(document).encode())

    def poll(self) -> int | None:
        """Return its exit code, as often as it is asked for; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)  # tells it once
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _last_error(log: Path) -> dict[str, Any]:
    """Read the error that a stack wrote as it ended: `Class: message`."""
    lines = log.read_text(errors="replace").splitlines()
    kind, _, message = lines[-1].partition(": ") if lines else ("", "", "")
    return {"error": kind, "message": message} if message and kind.isidentifier() else {}
