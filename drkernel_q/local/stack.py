"""The stack's own process: broker, persister, one worker a device; it ends when nobody holds a connection to it.

Workers take seconds to start, and are started first: SQL is imported and the store opened meanwhile.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from drkernel_q.errors import DrkqError, NoBroker, NoWorker
from drkernel_q.local.broker import Broker
from drkernel_q.local.control import Place, decode, encode, encode_error, hold_lock, load_order
from drkernel_q.local.process import resolve_devices
from drkernel_q.local.worker import WorkerProcess, worker_environment
from drkernel_q.queue.app import queue_names
from drkernel_q.queue.connection import connect
from drkernel_q.queue.registry import WorkerCard, give_up, withdraw, workers
from drkernel_q.settings import Settings

if TYPE_CHECKING:
    from drkernel_q.persist import Persister
    from drkernel_q.store import Store

#: A stack that nobody has joined ends after this.
FIRST_JOIN_S = 20.0
#: Longest time for a worker to register: torch and triton are imported on a cold disk.
WORKER_START_S = 180.0
#: A broker that ended this often within one stack is not started again.
MOST_BROKER_STARTS = 5
_POLL_S = 0.05


class Writer:
    """The store, and the thread that writes replies to it."""

    def __init__(self, store: "Store", persister: "Persister") -> None:
        """Begin to write."""
        self.store, self.persister = store, persister
        self._stop = threading.Event()
        self._thread = threading.Thread(target=persister.run, args=(self._stop,), daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, settings: Settings, broker_url: str) -> "Writer":
        """Open the store, and bring its tables up to date.

        Raises:
            NoStore, OutdatedStore: it cannot be written to.
        """
        from drkernel_q.persist import Persister
        from drkernel_q.store import Store

        store = Store.open(settings.store)
        store.upgrade()
        return cls(store, Persister(broker_url, store))

    def close(self) -> None:
        """Write what is left."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(DrkqError, RedisError):  # it stays in the journal for the next stack
            self.persister.drain()
        self.store.close()


class Stack:
    """Everything the stack's process holds."""

    def __init__(self, settings: Settings, place: Place, command: Sequence[str]) -> None:
        """Start the broker."""
        self.settings = settings
        self.place = place
        self.command = command
        self.broker = Broker(place.folder)
        self.broker_starts = 1
        self.writer: Writer | None = None
        """Known at the end; until then `opening` is what to ask."""
        self.redis = connect(self.broker.url, retries=0)
        self.token = place.new_token()
        self.workers: dict[str, WorkerProcess] = {}
        self.starting = asyncio.Lock()
        self.connections = 0
        self.sticky = False
        self.idle_until = time.monotonic() + FIRST_JOIN_S
        self.ending = asyncio.Event()

    async def serve(self) -> None:
        """Serve until nobody is left, `stop` was asked for, or a signal came."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.set)
        self.opening = asyncio.create_task(asyncio.to_thread(Writer.open, self.settings, self.broker.url))
        server = await asyncio.start_unix_server(self._talk, self.place.socket)
        try:
            while not self.ending.is_set():
                if self.opening.done():
                    self.opening.result()  # there is no stack without a store
                self._look_after_broker()
                await self._look_after_workers()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self.ending.wait()
                if not (self.connections or self.sticky) and time.monotonic() > self.idle_until:
                    self.ending.set()
        finally:
            # From here on a command that connects is sent away, and starts the next stack.
            self.ending.set()
            self.place.socket.unlink(missing_ok=True)
            server.close()
            await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
            with contextlib.suppress(DrkqError):  # whoever waits for it has been told
                self.writer = await self.opening

    def close(self) -> None:
        """Write what is left to the store, and end the broker."""
        if self.writer is not None:
            self.writer.close()
        self.redis.close()
        self.broker.stop()

    async def _talk(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self.ending.is_set():
            writer.close()
            return
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
            self.idle_until = time.monotonic() + self.settings.stack_idle_s
            writer.close()

    async def _answer(self, message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        match message["op"]:
            case "hello":
                yield {"hello": True}
            case "need":
                async for answer in self._need(resolve_devices(message["devices"])):
                    yield answer
            case "keep":
                self.sticky = True
                yield {"kept": True}
            case "status":
                yield {"status": self._status(await asyncio.shield(self.opening))}
            case "stop":
                yield {"stopping": True}
                self.ending.set()

    async def _need(self, devices: list[str]) -> AsyncIterator[dict[str, Any]]:
        try:
            for device in devices:
                async with self.starting:  # two commands may want the same one
                    if (worker := self.workers.get(device)) is not None and worker.error is None:
                        continue
                    yield {"say": f"starting a worker on {device}"}
                    await self._start_worker(device)
            await asyncio.shield(self.opening)
            for device in devices:
                await self._wait_for_worker(self.workers[device])
            yield {"ready": True, "url": self.broker.url, "devices": devices}
        except DrkqError as error:
            yield encode_error(error)

    async def _start_worker(self, device: str) -> None:
        environment = worker_environment(self.settings, self.broker.url)
        worker = WorkerProcess(device, self.place.worker_log(device), environment, self.command)
        self.workers[device] = worker
        await worker.start()

    async def _wait_for_worker(self, worker: WorkerProcess) -> None:
        deadline = time.monotonic() + WORKER_START_S
        while not worker.registered:
            if worker.error is not None:
                raise worker.error
            if time.monotonic() > deadline or self.ending.is_set():
                raise NoWorker(f"The worker on {worker.device} did not register in time.")
            await asyncio.sleep(_POLL_S)

    async def _look_after_workers(self) -> None:
        """Note who has registered; start again who ended, and tell those who wait when that is no use."""
        if all(worker.registered and worker.alive for worker in self.workers.values()):
            return
        try:
            cards = [card for card in workers(self.redis) if card.host == socket.gethostname()]
            for worker in self.workers.values():
                mine = [card for card in cards if card.device == worker.device]
                if worker.alive:
                    worker.registered = worker.registered or bool(mine)
                    continue
                for card in mine:  # of the process that ended; it would be believed until it expires
                    withdraw(self.redis, card.id)
                if worker.error is None:
                    await worker.look()
                    self._tell_of_loss(worker, [card for card in cards if card not in mine])
        except RedisError:
            return  # the broker is being started again

    def _tell_of_loss(self, worker: WorkerProcess, others: list[WorkerCard]) -> None:
        """Let those who wait for a worker that was given up know, unless another one serves them."""
        if worker.error is not None:
            served = {queue for card in others for queue in card.queues}
            queues = set(queue_names(socket.gethostname(), worker.device)) - served
            give_up(self.redis, queues, str(worker.error))

    def _look_after_broker(self) -> None:
        """Start a broker that was killed again: its journal has what was waiting.

        Raises:
            NoBroker: it will not stay.
        """
        if self.broker.alive:
            return
        if self.broker_starts >= MOST_BROKER_STARTS:
            raise NoBroker("The embedded broker ended again and again.")
        self.broker_starts += 1
        self.broker.start()

    def _status(self, writer: Writer) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "broker": str(self.broker.socket),
            "store": writer.store.public_url,
            "kept": self.sticky,
            "commands": self.connections - 1,
            "url": self.broker.url,
        }


def main() -> int:
    """Run the stack that standard input orders; return at once when it runs already."""
    settings, command = load_order(json.load(sys.stdin))
    place = Place(settings)
    place.prepare()
    lock = hold_lock(place.lock)
    if lock is None:
        return 0
    os.truncate(place.log, 0)
    place.tidy()  # after a stack that was killed
    try:
        stack = Stack(settings, place, command)
        try:
            asyncio.run(stack.serve())
        finally:
            stack.close()
    except DrkqError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    finally:
        place.tidy()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
