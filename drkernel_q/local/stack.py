"""The stack's own process: broker, persister, one worker a device; it ends when nobody holds a connection to it."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

from redis.exceptions import RedisError

from drkernel_q.errors import DeviceBusy, DrkqError, NoWorker
from drkernel_q.local.broker import Broker
from drkernel_q.local.control import Place, decode, encode, encode_error
from drkernel_q.local.process import die_with_parent, resolve_devices
from drkernel_q.persist import Persister
from drkernel_q.queue.connection import connect
from drkernel_q.queue.registry import workers
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store

#: A stack that nobody has joined ends after this.
FIRST_JOIN_S = 20.0
#: Longest time for a worker to register: torch and triton are imported on a cold disk.
WORKER_START_S = 180.0
#: A worker that is told to go while nobody waits for it has this long.
WORKER_STOP_S = 5.0
_POLL_S = 0.05
#: Beyond this many starts that failed at once, a worker is not started again.
_MOST_FAILURES = 3


class WorkerProcess:
    """One `drkq worker` and its log."""

    def __init__(self, device: str, log: Path, environment: dict[str, str], command: list[str]) -> None:
        """Start it."""
        self.device = device
        self.log = log
        self.environment = environment
        self.command = command
        self.failures = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, or start it again."""
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                "--device",
                self.device,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    def reason(self) -> str:
        """Return the last thing it said."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("drkq: ") if lines else "it said nothing"

    async def stop(self) -> None:
        """End it; nobody waits for what it is doing."""
        if self.process is None or self.process.returncode is not None:
            return
        for number in (signal.SIGTERM, signal.SIGTERM):  # the second one gives the task back instead of finishing it
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), WORKER_STOP_S / 2)
                return
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Stack:
    """Everything the stack's process holds."""

    def __init__(self, settings: Settings, place: Place, command: list[str]) -> None:
        """Start the broker and the persister."""
        self.settings = settings
        self.place = place
        self.command = command
        self.broker = Broker(place.folder)
        self.store = Store.open(settings.store)
        self.store.upgrade()
        self.persister = Persister(self.broker.url, self.store)
        self.stop_persister = threading.Event()
        self.persist = threading.Thread(target=self.persister.run, args=(self.stop_persister,), daemon=True)
        self.persist.start()
        self.redis = connect(self.broker.url)
        self.token = place.new_token()
        self.workers: dict[str, WorkerProcess] = {}
        self.connections = 0
        self.sticky = False
        self.idle_since = time.monotonic() + FIRST_JOIN_S
        self.ending = asyncio.Event()

    async def serve(self) -> None:
        """Serve until nobody is left, `stop` was asked for, or a signal came."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.set)
        server = await asyncio.start_unix_server(self._talk, self.place.socket)
        try:
            while not self.ending.is_set():
                await self._look_after_workers()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ending.wait(), _POLL_S * 4)
                if not (self.connections or self.sticky) and time.monotonic() > self.idle_since:
                    break
        finally:
            self.place.socket.unlink(missing_ok=True)
            server.close()
            await asyncio.gather(*(worker.stop() for worker in self.workers.values()))

    def close(self) -> None:
        """Write what is left to the store, and end the broker."""
        self.stop_persister.set()
        self.persist.join()
        with contextlib.suppress(DrkqError, RedisError):  # it stays in the journal for the next stack
            self.persister.drain()
        self.store.close()
        self.broker.stop()

    async def _talk(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        try:
            while message := decode(await reader.readline()):
                if message.get("token") != self.token:
                    return
                async for answer in self._answer(message):
                    writer.write(encode(answer))
                    await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the command is gone, or is none of ours
        finally:
            self.connections -= 1
            self.idle_since = time.monotonic() + self.settings.stack_idle_s
            writer.close()

    async def _answer(self, message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        match message["op"]:
            case "need":
                async for answer in self._need(resolve_devices(message["devices"])):
                    yield answer
            case "keep":
                self.sticky = True
                yield {"kept": True}
            case "status":
                yield {"status": self._status()}
            case "stop":
                yield {"stopping": True}
                self.ending.set()

    async def _need(self, devices: list[str]) -> AsyncIterator[dict[str, Any]]:
        try:
            for device in devices:
                if device not in self.workers or not self.workers[device].alive:
                    yield {"say": f"starting a worker on {device}"}
                    await self._start_worker(device)
            for device in devices:
                await self._wait_for_worker(device)
            yield {"ready": True, "url": self.broker.url, "devices": devices}
        except DrkqError as error:
            yield encode_error(error)

    async def _start_worker(self, device: str) -> None:
        environment = os.environ | {"DRKQ_BROKER_URL": self.broker.url}
        worker = WorkerProcess(device, self.place.worker_log(device), environment, self.command)
        worker.log.unlink(missing_ok=True)
        await worker.start()
        self.workers[device] = worker

    async def _wait_for_worker(self, device: str) -> None:
        deadline = time.monotonic() + WORKER_START_S
        host = socket.gethostname()
        while time.monotonic() < deadline:
            worker = self.workers.get(device)
            if worker is None or not worker.alive:
                reason = worker.reason() if worker is not None else "it is gone"
                raise DeviceBusy(reason) if "is held by" in reason else NoWorker(f"No worker on {device}: {reason}")
            if any(card.device == device and card.host == host for card in workers(self.redis)):
                return
            await asyncio.sleep(_POLL_S)
        raise NoWorker(f"The worker on {device} did not register within {WORKER_START_S:g} s.")

    async def _look_after_workers(self) -> None:
        """Start workers again that ended by themselves, a few times; what they said stays in their log."""
        for worker in self.workers.values():
            if worker.alive or worker.failures >= _MOST_FAILURES:
                continue
            worker.failures += 1
            if worker.failures < _MOST_FAILURES and self._has_registered(worker.device):
                await worker.start()

    def _has_registered(self, device: str) -> bool:
        return any(card.device == device for card in workers(self.redis))

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "broker": str(self.broker.socket),
            "store": self.store.public_url,
            "kept": self.sticky,
            "commands": self.connections - 1,
            "url": self.broker.url,
        }


def hold_lock(path: Path) -> IO[str] | None:
    """Take the lock of the stack for this process's life; None when another stack has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def main(command: list[str] | None = None) -> int:
    """Run the stack of this user's store; return at once when it runs already."""
    settings = load_settings()
    place = Place(settings)
    place.prepare()
    lock = hold_lock(place.lock)
    if lock is None:
        return 0
    place.socket.unlink(missing_ok=True)
    try:
        stack = Stack(settings, place, command or [sys.executable, "-m", "workers"])
    except DrkqError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    try:
        asyncio.run(stack.serve())
    finally:
        stack.close()
        for path in place.folder.iterdir():
            if path.name in {"token", "control.sock", "broker.sock"}:
                path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
