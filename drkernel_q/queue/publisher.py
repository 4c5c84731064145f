"""The publisher: one task a client that sends everything, many messages to a round trip.

Commands run in this task alone, so cancelling whoever submits never cuts a command in half (redis-py#2665:
the next caller would read the other's answer).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis import asyncio as aioredis
from redis.exceptions import AuthenticationError, NoScriptError, RedisError

from drkernel_q.errors import DrkqError, NoBroker
from drkernel_q.evaluation import Reply
from drkernel_q.queue import keys, scripts
from drkernel_q.queue.app import VISIBILITY_TIMEOUT_S
from drkernel_q.queue.backoff import Backoff
from drkernel_q.queue.connection import TRANSIENT
from drkernel_q.queue.ledger import RESULT_TTL_S, encode
from drkernel_q.queue.pending import Pending, PendingSet
from drkernel_q.request import Priority, Request

#: Most messages, and about the most bytes, that one round trip carries.
BATCH_MESSAGES = 500
BATCH_BYTES = 8 * 2**20
#: How long the broker remembers who waits and what was cancelled; longer than any delivery can be late.
MARK_TTL_S = int(VISIBILITY_TIMEOUT_S) + 4 * 3600


@dataclass(slots=True, eq=False)
class Publishing:
    """A message to send, and who waits until it is sent."""

    pending: Pending
    sent: asyncio.Future[None]


class Record(NamedTuple):
    """A reply that came from the archive, for the store to keep under this request too."""

    request: Request
    reply: Reply


_Item = Publishing | Record | Pending


@dataclass(slots=True)
class _Batch:
    messages: list[Publishing] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    cancelled: list[Pending] = field(default_factory=list)
    bytes: int = 0

    def add(self, item: _Item) -> None:
        if isinstance(item, Pending):
            self.cancelled.append(item)
        elif isinstance(item, Record):
            self.records.append(item)
        elif not item.pending.future.done():
            self.messages.append(item)
            self.bytes += len(item.pending.message.text)
        elif not item.sent.done():
            item.sent.set_result(None)

    @property
    def full(self) -> bool:
        items = len(self.messages) + len(self.records) + len(self.cancelled)
        return items >= BATCH_MESSAGES or self.bytes >= BATCH_BYTES


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
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue()
        self._admit = redis.register_script(scripts.ADMIT)
        self._cancel = redis.register_script(scripts.CANCEL)
        self._depths = depths

    def publish(self, pending: Pending) -> asyncio.Future[None]:
        """Send the message; the future is done when the broker has it."""
        sent = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(Publishing(pending, sent))
        return sent

    def record(self, request: Request, reply: Reply) -> None:
        """Have the store keep a reply from the archive under this request too."""
        self._inbox.put_nowait(Record(request, reply))

    def cancel(self, pending: Pending) -> None:
        """Tell the workers that this client no longer wants the request."""
        self._inbox.put_nowait(pending)

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
            except NoScriptError:
                continue  # the broker was started anew; it has the scripts now
            except TRANSIENT as error:
                if backoff.failing_s > self._patience_s:
                    return self._give_up(batch, NoBroker(f"The broker does not answer: {error}."))
                await backoff.sleep()
            except RedisError as error:
                return self._give_up(batch, NoBroker(f"The broker refuses the request: {error}."))
            else:
                break
        for item in batch.messages:
            if not item.sent.done():
                item.sent.set_result(None)
        return None

    async def _send(self, batch: _Batch) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for item in batch.messages:
            self._add_admission(pipe, item.pending)
        for request, reply in batch.records:
            pipe.xadd(keys.RESULTS, {"request": encode(request), "reply": encode(reply)})
        for pending in batch.cancelled:
            arguments = (pending.id, self._stream, MARK_TTL_S, pending.leader or "")
            pipe.evalsha(self._cancel.sha, 0, *map(str, arguments))
        try:
            answers = await pipe.execute()
        except NoScriptError:
            for script in (self._admit, self._cancel):
                await self._redis.script_load(script.script)
            raise
        for item, (state, found, list_key) in zip(batch.messages, answers, strict=False):
            self._note(item.pending, state, found, list_key)

    def _add_admission(self, pipe: aioredis.client.Pipeline, pending: Pending) -> None:
        named = [
            pending.message.key,
            keys.waiters(pending.id),
            keys.RESULTS,
            keys.flight(pending.flight_key),
            keys.result(pending.id),
        ]
        arguments = (
            pending.id,
            self._stream,
            pending.message.text,
            MARK_TTL_S,
            RESULT_TTL_S,
            list(Priority).index(pending.request.priority),
            encode(pending.request) if pending.flight_key else "",
            *map(keys.content, pending.content_keys),
        )
        pipe.evalsha(self._admit.sha, len(named), *named, *map(str, arguments))

    def _note(self, pending: Pending, state: str, found: Any, list_key: str) -> None:
        """Note what became of a message that was to be sent."""
        if state == "known":
            self._pending.receive(pending.id, found)
            return
        if state == "joined":
            pending.leader, pending.leader_list = found, list_key
        else:
            self._depths[pending.message.key] = int(found)
        self._pending.published(pending)

    def _give_up(self, batch: _Batch, error: DrkqError) -> None:
        for item in batch.messages:
            self._pending.fail(item.pending, error)
            if not item.sent.done():
                item.sent.set_result(None)
