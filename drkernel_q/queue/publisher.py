"""The publisher: one task a client that sends everything, many messages to a round trip.

Commands run in this task alone, so cancelling whoever submits never cuts a command in half (redis-py#2665:
the next caller would read the other's answer).
"""

import asyncio
from dataclasses import dataclass, field

from redis import asyncio as aioredis
from redis.exceptions import AuthenticationError, RedisError

from drkernel_q.errors import DrkqError, NoBroker
from drkernel_q.queue import keys
from drkernel_q.queue.app import VISIBILITY_TIMEOUT_S
from drkernel_q.queue.backoff import Backoff
from drkernel_q.queue.connection import TRANSIENT
from drkernel_q.queue.pending import Pending, PendingSet

#: Most messages, and about the most bytes, that one round trip carries.
BATCH_MESSAGES = 500
BATCH_BYTES = 8 * 2**20
#: How long the broker remembers who waits and what was cancelled; longer than any delivery can be late.
MARK_TTL_S = int(VISIBILITY_TIMEOUT_S) + 4 * 3600

_CANCEL = """
redis.call('SREM', KEYS[1], ARGV[1])
if redis.call('SCARD', KEYS[1]) > 0 then return 0 end
redis.call('SET', KEYS[2], 1, 'EX', ARGV[2])
return 1
"""


@dataclass(slots=True, eq=False)
class Publishing:
    """A message to send, and who waits until it is sent."""

    pending: Pending
    sent: asyncio.Future[None]


@dataclass(slots=True)
class _Batch:
    messages: list[Publishing] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    bytes: int = 0

    def add(self, item: Publishing | str) -> None:
        if isinstance(item, str):
            self.cancelled.append(item)
        elif not item.pending.future.done():
            self.messages.append(item)
            self.bytes += len(item.pending.message.text)
        elif not item.sent.done():
            item.sent.set_result(None)

    @property
    def full(self) -> bool:
        return len(self.messages) + len(self.cancelled) >= BATCH_MESSAGES or self.bytes >= BATCH_BYTES


class Publisher:
    """Sends messages and cancellations in the order in which they were given."""

    def __init__(
        self, redis: aioredis.Redis, pending: PendingSet, depths: dict[str, int], *, stream: str, patience_s: float
    ) -> None:
        """Send through `redis`; give up on a message when the broker has been away for `patience_s`.

        How many messages a list has after a push, by its key, is noted in `depths`.
        """
        self._redis = redis
        self._pending = pending
        self._stream = stream
        self._patience_s = patience_s
        self._inbox: asyncio.Queue[Publishing | str] = asyncio.Queue()
        self._cancel = redis.register_script(_CANCEL)
        self._depths = depths

    def publish(self, pending: Pending) -> asyncio.Future[None]:
        """Send the message; the future is done when the broker has it."""
        sent = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(Publishing(pending, sent))
        return sent

    def cancel(self, request_id: str) -> None:
        """Tell the workers that this client no longer wants the request."""
        self._inbox.put_nowait(request_id)

    async def drain(self) -> None:
        """Wait until everything given so far was sent, or given up."""
        await self._inbox.join()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            batch = _Batch()
            taken = 1
            batch.add(await self._inbox.get())
            while not batch.full and not self._inbox.empty():
                batch.add(self._inbox.get_nowait())
                taken += 1
            await self._deliver(batch)
            for _ in range(taken):
                self._inbox.task_done()

    async def _deliver(self, batch: _Batch) -> None:
        """Send one batch, again and again while the broker is away; a message may then arrive twice."""
        backoff = Backoff()
        while True:
            try:
                await self._send(batch)
            except AuthenticationError as error:
                return self._give_up(batch, NoBroker(f"The broker refuses the password: {error}."))
            except TRANSIENT as error:
                if backoff.failing_s > self._patience_s:
                    return self._give_up(batch, NoBroker(f"The broker does not answer: {error}."))
                await backoff.sleep()
            except RedisError as error:
                return self._give_up(batch, NoBroker(f"The broker refuses the request: {error}."))
            else:
                break
        for item in batch.messages:
            self._pending.published(item.pending)
            if not item.sent.done():
                item.sent.set_result(None)
        return None

    async def _send(self, batch: _Batch) -> None:
        by_key: dict[str, list[str]] = {}
        pipe = self._redis.pipeline(transaction=True)
        for item in batch.messages:
            message = item.pending.message
            by_key.setdefault(message.key, []).append(message.text)
            waiters = keys.waiters(item.pending.id)
            pipe.sadd(waiters, self._stream)
            pipe.expire(waiters, MARK_TTL_S)
        for key, texts in by_key.items():
            pipe.lpush(key, *texts)
        if by_key:
            answers = await pipe.execute()
            self._depths.update(zip(by_key, answers[-len(by_key) :], strict=True))
        for request_id in batch.cancelled:
            await self._cancel(
                keys=[keys.waiters(request_id), keys.cancel(request_id)], args=[self._stream, MARK_TTL_S]
            )

    def _give_up(self, batch: _Batch, error: DrkqError) -> None:
        for item in batch.messages:
            self._pending.fail(item.pending, error)
            if not item.sent.done():
                item.sent.set_result(None)
