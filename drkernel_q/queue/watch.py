"""The watch: one slow look, for all pending requests together, for what a stream cannot tell.

A reply can be lost with the broker's memory, a message can be lost with the worker that held it, and the last
worker can leave. A look costs a few round trips, however many requests wait.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import cast

from redis import asyncio as aioredis
from redis.exceptions import RedisError

from drkernel_q.errors import DrkqError, NoWorker
from drkernel_q.queue import keys
from drkernel_q.queue.pending import Pending, PendingSet
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.queue.routing import serves
from drkernel_q.value import Value

#: Requests in one round trip.
CHUNK = 500
#: A lease this far past its end has no holder any more.
LEASE_MARGIN_MS = 3000


class Patience(Value):
    """How long the client waits for what, in seconds."""

    connect_s: float = 5.0
    """For the broker, when the client starts."""
    broker_s: float = 60.0
    """For a broker that went away; then everything pending ends in NoBroker."""
    worker_s: float = 10.0
    """For a first worker for a device, when a request is submitted; then NoWorker."""
    gone_s: float = 120.0
    """For a worker to come back when the last one for a queue has left; then NoWorker."""
    look_s: float = 10.0
    """Between two looks of the watch."""
    lost_s: float = 10.0
    """For a message that is in no list and has no claim, before it is sent again."""


class Watch:
    """Finds replies by key, sends lost messages again, and gives up on queues that nobody serves."""

    def __init__(
        self,
        redis: aioredis.Redis,
        pending: PendingSet,
        *,
        reconnected: asyncio.Event,
        cards: Callable[[], Awaitable[Sequence[WorkerCard]]],
        republish: Callable[[Pending], None],
        abandon: Callable[[Pending, DrkqError], None],
        patience: Patience,
    ) -> None:
        """Look each `patience.look_s`, and at once when `reconnected` is set."""
        self._redis = redis
        self._pending = pending
        self._reconnected = reconnected
        self._cards = cards
        self._republish = republish
        self._abandon = abandon
        self._patience = patience
        self._unserved_since: dict[str, float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience.look_s):
                    await self._reconnected.wait()
            self._reconnected.clear()
            if not len(self._pending):
                continue
            try:
                await self._look()
            except RedisError:
                # The inbox tells of a broker that is away; its next connection calls for another look.
                continue

    async def _look(self) -> None:
        for chunk in _chunks(self._sent()):
            for text in await self._redis.mget([keys.result(pending.id) for pending in chunk]):
                if text is not None:
                    self._pending.receive(cast("str", text))
        waiting: list[Pending] = []
        for chunk in _chunks(self._sent()):
            waiting += await self._without_worker(chunk)
        if waiting:
            await self._find_lost(waiting)
            await self._give_up_unserved(waiting)

    def _sent(self) -> list[Pending]:
        return [pending for pending in self._pending if pending.sequence]

    async def _without_worker(self, chunk: list[Pending]) -> list[Pending]:
        """Choose those that no live worker is at; what a dead one held is sent again, once for each death."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.time()
        for pending in chunk:
            pipe.hmget(keys.claim(pending.id), ["expires_ms", "fence", "finished"])
        (seconds, micros), *claims = await pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        waiting = []
        for pending, (expires_ms, fence, finished) in zip(chunk, claims, strict=True):
            if finished is not None or int(expires_ms or 0) + LEASE_MARGIN_MS > now_ms:
                continue
            waiting.append(pending)
            # A lease that ends at 0 was given back, with its message.
            if int(expires_ms or 0) and fence != pending.replaced_fence:
                pending.replaced_fence = fence
                self._send_again(pending)
        return waiting

    async def _find_lost(self, waiting: list[Pending]) -> None:
        """Send again what is in no list: popped by a worker that died, or gone with the broker's memory."""
        lists = sorted({pending.message.key for pending in waiting})
        pipe = self._redis.pipeline(transaction=False)
        for key in lists:
            pipe.llen(key)
        depths = dict(zip(lists, await pipe.execute(), strict=True))
        for pending in waiting:
            gone = not depths[pending.message.key] or self._pending.overtaken(pending)
            if gone and time.monotonic() - pending.published_at >= self._patience.lost_s:
                self._send_again(pending)

    def _send_again(self, pending: Pending) -> None:
        pending.published_at = time.monotonic()
        self._republish(pending)

    async def _give_up_unserved(self, waiting: list[Pending]) -> None:
        """Fail what nobody will take: at once where a worker was given up, else after a while."""
        now = time.monotonic()
        cards = await self._cards()
        unserved = sorted({pending.queue for pending in waiting if not serves(cards, pending.queue)})
        self._unserved_since = {queue: self._unserved_since.get(queue, now) for queue in unserved}
        if not unserved:
            return
        reasons = dict(zip(unserved, await self._redis.mget([keys.loss(queue) for queue in unserved]), strict=True))
        for pending in waiting:
            since = self._unserved_since.get(pending.queue, now)
            if (reason := reasons.get(pending.queue)) is not None:
                self._abandon(pending, NoWorker(str(reason)))
            elif now - since >= self._patience.gone_s:
                message = f"No worker has served `{pending.queue}` for {self._patience.gone_s:.0f} s."
                self._abandon(pending, NoWorker(message))


def _chunks(items: list[Pending]) -> Iterator[list[Pending]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
