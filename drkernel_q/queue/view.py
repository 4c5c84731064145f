"""The view: what a client sees of the others, which workers live and how much waits; read once for all who ask."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from kombu.utils.url import maybe_sanitize_url
from redis import asyncio as aioredis
from redis.exceptions import AuthenticationError, OutOfMemoryError, RedisError

from drkernel_q.errors import NoBroker, NoWorker
from drkernel_q.queue import keys
from drkernel_q.queue.backoff import Backoff
from drkernel_q.queue.connection import TRANSIENT
from drkernel_q.queue.message import list_keys
from drkernel_q.queue.registry import WorkerCard, workers_async
from drkernel_q.queue.routing import check_device, route, why_not
from drkernel_q.queue.turns import LANES
from drkernel_q.queue.watch import Patience

_T = TypeVar("_T")

#: How long a list of workers, or a depth beyond the limit, is believed.
FRESH_S = 0.5
#: Between two looks at what waits to be written.
_LOOK_S = 0.02


class View:
    """What one client knows of workers and lists, and how it waits for them."""

    def __init__(self, redis: aioredis.Redis, patience: Patience) -> None:
        """Read through `redis`; nothing is read yet."""
        self._redis = redis
        self._patience = patience
        self._reading: dict[str, asyncio.Task[Any]] = {}
        self._cards: tuple[float, list[WorkerCard]] = (float("-inf"), [])
        self.depths: dict[str, int] = {}
        """By list key, how many messages it had when last looked at; whoever pushes says it too."""

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """What is being read, to be ended with the client."""
        return list(self._reading.values())

    async def enter(self, url: str) -> int:
        """Wait until the broker answers; return the lane of this client, while there are no more clients than lanes.

        Raises:
            NoBroker: it does not answer within `patience.connect_s`, or refuses the password.
        """
        backoff = Backoff()
        where = maybe_sanitize_url(url)
        while True:
            try:
                await self._redis.ping()
                return int(await self._redis.incr(keys.CLIENTS)) % LANES
            except OutOfMemoryError:
                return 0  # it answers; when it has room again, this client shares the first lane
            except AuthenticationError as error:
                raise NoBroker(f"The broker at {where} refuses the password: {error}.") from error
            except TRANSIENT as error:
                if backoff.failing_s > self._patience.connect_s:
                    raise NoBroker(f"The broker at {where} does not answer: {error}") from error
                await backoff.sleep()
            except RedisError as error:
                raise NoBroker(f"The broker at {where} cannot be used: {error}") from error

    async def workers(self) -> Sequence[WorkerCard]:
        """List the live workers, as of half a second ago at most."""
        read_at, cards = self._cards
        if time.monotonic() - read_at < FRESH_S:
            return cards
        return await self._share("workers", self._read_cards)

    async def written(self, timeout_s: float) -> bool:
        """Wait until a persister, if there is one, has written all that is known by now; return whether it has."""
        give_up_at = time.monotonic() + timeout_s
        try:
            seconds, microseconds = await self._redis.time()
            while oldest := await self._redis.xrange(keys.RESULTS, count=1):
                if keys.moment_ms(oldest[0][0]) > seconds * 1000 + microseconds / 1000:
                    return True
                if time.monotonic() >= give_up_at or not await self._redis.xinfo_groups(keys.RESULTS):
                    return False
                await asyncio.sleep(_LOOK_S)
        except RedisError:
            return False
        return True

    async def serving(self, queue: str) -> list[WorkerCard]:
        """List the live workers that take from a queue."""
        return [card for card in await self.workers() if queue in card.queues]

    async def route(self, device: str) -> str:
        """Find the queue for a device, and wait a little for a worker that is just starting.

        Raises:
            NoDevice: `device` names no device.
            NoWorker: nobody serves it.
            NoBroker: the broker went away and did not come back.
        """
        check_device(device)
        give_up_at = time.monotonic() + self._patience.worker_s
        while (queue := route(await self.workers(), device)) is None:
            if time.monotonic() >= give_up_at:
                raise NoWorker(why_not(await self.workers(), device))
            await asyncio.sleep(FRESH_S)
        return queue

    async def depth(self, queue: str) -> int:
        """Count the messages that wait in a queue, over all its lists."""
        return sum(await self._share(queue, lambda: self._read_depths(list_keys(queue))))

    async def room(self, key: str, most: int) -> None:
        """Wait while the list has `most` messages or more."""
        while self.depths.get(key, 0) >= most:
            (depth,) = await self._share(key, lambda: self._read_depths([key]))
            if depth >= most:
                await asyncio.sleep(FRESH_S)

    async def _read_cards(self) -> list[WorkerCard]:
        cards = await workers_async(self._redis)
        self._cards = (time.monotonic(), cards)
        return cards

    async def _read_depths(self, lists: list[str]) -> list[int]:
        pipe = self._redis.pipeline(transaction=False)
        for key in lists:
            pipe.llen(key)
        lengths = [int(length) for length in await pipe.execute()]
        self.depths.update(zip(lists, lengths, strict=True))
        return lengths

    async def _share(self, name: str, read: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Read once for everybody who asks meanwhile; whoever is cancelled leaves the read to the others."""
        task = self._reading.get(name)
        if task is None or task.done():
            task = self._reading[name] = asyncio.create_task(self._patiently(read))
        return cast("_T", await asyncio.shield(task))

    async def _patiently(self, read: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        backoff = Backoff()
        while True:
            try:
                return await read()
            except TRANSIENT as error:
                if backoff.failing_s > self._patience.broker_s:
                    raise NoBroker(f"The broker does not answer: {error}") from error
                await backoff.sleep()
            except RedisError as error:
                raise NoBroker(f"The broker refuses a read: {error}") from error
