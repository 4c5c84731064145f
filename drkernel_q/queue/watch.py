"""The watch: one slow look, for all pending requests together, for what a stream cannot tell.

A reply can be lost with the broker's memory, a message can be lost with the worker that held it, and the last
worker can leave. A look costs a few round trips, however many requests wait.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum, auto

from redis import asyncio as aioredis
from redis.exceptions import RedisError

from drkernel_q.errors import DrkqError, InfrastructureFailure, NoWorker
from drkernel_q.queue import keys
from drkernel_q.queue.archive import Memory
from drkernel_q.queue.pending import Pending, PendingSet
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.queue.routing import serves
from drkernel_q.value import Value

#: Requests in one round trip.
CHUNK = 500
#: The message of another client's request is not waited for longer than this before it is claimed.
LEADER_S = 300.0


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


class _Claim(Enum):
    """Who is at a request that has no reply."""

    NONE = auto()
    HELD = auto()
    ENDED = auto()
    """Its worker is gone, or gave it back; the other workers see to it."""
    FINISHED = auto()


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
        memory: Memory,
        patience: Patience,
    ) -> None:
        """Look each `patience.look_s`, and at once when `reconnected` is set."""
        self._redis = redis
        self._pending = pending
        self._reconnected = reconnected
        self._cards = cards
        self._republish = republish
        self._abandon = abandon
        self._memory = memory
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
        waiting, lost, expired = [], [], []
        for chunk in _chunks([pending for pending in self._pending if pending.sequence]):
            async for pending, claim in self._unanswered(chunk):
                if claim is _Claim.FINISHED:
                    expired.append(pending)
                elif claim is not _Claim.HELD:
                    waiting.append(pending)
                    if claim is _Claim.NONE:
                        lost.append(pending)
        await self._fetch_expired(expired)
        if lost:
            await self._find_lost(lost)
        if waiting:
            await self._give_up_unserved(waiting)

    async def _unanswered(self, chunk: list[Pending]) -> AsyncGenerator[tuple[Pending, "_Claim"]]:
        """Take replies that are there by key, and tell of the others who is at them."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.time()
        for pending in chunk:
            pipe.get(keys.result(pending.id))
            pipe.hmget(keys.claim(pending.leader or pending.id), ["expires_ms", "finished"])
        (seconds, micros), *found = await pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        for pending, reply, (expires_ms, finished) in zip(chunk, found[::2], found[1::2], strict=True):
            if reply is not None:
                self._pending.receive(pending.id, reply)
            elif finished is not None:
                yield pending, _Claim.FINISHED
            elif expires_ms is None:
                yield pending, _Claim.NONE
            else:
                yield pending, _Claim.HELD if int(expires_ms) > now_ms else _Claim.ENDED

    async def _fetch_expired(self, expired: list[Pending]) -> None:
        """Look for replies in the archive that the broker has had and has no more."""
        for pending in expired:
            reply = await self._memory.reply(pending.id)
            missing = InfrastructureFailure(f"The reply to {pending.id} has expired in the broker; look in the store.")
            self._pending.answer(pending.id, reply or missing)

    async def _find_lost(self, unclaimed: list[Pending]) -> None:
        """Send again what is in no list: popped by a worker that died, or gone with the broker's memory.

        What a worker had claimed is delivered again by the other workers.
        """
        lists = sorted({pending.list_key for pending in unclaimed})
        pipe = self._redis.pipeline(transaction=False)
        for key in lists:
            pipe.llen(key)
        depths = dict(zip(lists, await pipe.execute(), strict=True))
        for pending in unclaimed:
            waited_s = time.monotonic() - pending.published_at
            gone = not depths[pending.list_key] or self._pending.overtaken(pending)
            # The client that has to miss the message of a leader may be gone itself.
            gone = gone or (pending.leader is not None and waited_s >= LEADER_S)
            if not gone or waited_s < self._patience.lost_s:
                continue
            # It may have been answered and stored before the broker lost its memory.
            if (reply := await self._memory.reply(pending.id)) is not None:
                self._pending.answer(pending.id, reply)
            else:
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
