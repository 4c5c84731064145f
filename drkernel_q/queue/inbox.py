"""The inbox: one blocking read on the client's own reply stream, which survives any cut.

Subscriptions lose what is sent while a connection is away; a stream does not.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from redis import asyncio as aioredis
from redis.exceptions import RedisError

from drkernel_q.errors import NoBroker
from drkernel_q.queue.backoff import Backoff
from drkernel_q.queue.connection import TRANSIENT
from drkernel_q.queue.pending import PendingSet

#: How long one read waits; shorter than the connection's time-out, so that a dead peer is noticed.
BLOCK_MS = 4000
SOCKET_TIMEOUT_S = 8.0
#: Entries in one read.
READ_COUNT = 500
#: The stream outlives its client by this, in case the client was only cut off.
STREAM_TTL_S = 3600


class Inbox:
    """Reads replies and hands them to whoever waits."""

    def __init__(
        self,
        redis: aioredis.Redis,
        pending: PendingSet,
        *,
        stream: str,
        restarted: Callable[[], None],
        patience_s: float,
    ) -> None:
        """Read by a connection of its own; after `patience_s` without a broker, fail everybody who waits.

        `restarted` is called when the broker is another process than before, and may have forgotten things.
        """
        self._redis = redis
        self._pending = pending
        self._stream = stream
        self._patience_s = patience_s
        self._last_id = "0"
        self._restarted = restarted
        self._run_id: str | None = None
        self.reconnected = asyncio.Event()
        """Set after each connection: replies may have been lost with the broker, so look by key."""

    async def run(self) -> None:
        """Read until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await self._open()
                self.reconnected.set()
                backoff.reset()
                while True:
                    await self._read()
            except TRANSIENT as error:
                if backoff.failing_s > self._patience_s:
                    self._fail_all(f"No broker for {self._patience_s:.0f} s: {error}")
                await backoff.sleep()
            except RedisError as error:
                self._fail_all(f"The broker refuses to be read: {error}")
                await backoff.sleep()

    def _fail_all(self, message: str) -> None:
        for pending in self._pending:
            self._pending.fail(pending, NoBroker(message))

    async def _open(self) -> None:
        """Make the stream: workers write only to one that exists, so a client that left leaves none."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.exists(self._stream)
        pipe.xadd(self._stream, {"opened": "1"})
        pipe.expire(self._stream, STREAM_TTL_S)
        pipe.info("server")
        existed, *_, server = await pipe.execute()
        if not existed:
            self._last_id = "0"
        before, self._run_id = self._run_id, server["run_id"]
        if before not in (None, self._run_id):
            self._restarted()

    async def _read(self) -> None:
        place: dict[Any, Any] = {self._stream: self._last_id}
        answer = await self._redis.xread(place, count=READ_COUNT, block=BLOCK_MS)
        entries = [entry for _, rows in cast("list[Any]", answer or []) for entry in rows]
        for entry_id, fields in entries:
            self._last_id = entry_id
            if "reply" in fields:
                self._pending.receive(fields["for"], fields["reply"])
        pipe = self._redis.pipeline(transaction=False)
        pipe.expire(self._stream, STREAM_TTL_S)
        if entries:
            pipe.xtrim(self._stream, minid=self._last_id, approximate=False)
        alive, *_ = await pipe.execute()
        if not alive:
            await self._open()
            self.reconnected.set()
