"""Promises: orders that were accepted, written down in the broker until their replies are there.

A gateway that ends, or is killed, takes them up again when it starts under the same name; a reply that came meanwhile
is still known to the broker or the store.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pydantic import ValidationError
from redis import asyncio as aioredis
from redis.exceptions import RedisError

from drkernel_q.errors import NoBroker
from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.gateway.submission import Submission
from drkernel_q.queue import keys
from drkernel_q.queue.client import end_tasks
from drkernel_q.value import Value

log = logging.getLogger(__name__)

#: Pause after which a broker that is away is told again of what is done.
PAUSE_S = 1.0
#: Writers at the same time.
TURNS = 8
#: Promises in one round trip.
CHUNK = 200


class Promise(Value):
    """One order that was accepted."""

    client: str
    device: str
    request: EvaluationRequest


class Promises:
    """The promises of the gateway of one name."""

    def __init__(self, redis: aioredis.Redis, name: str) -> None:
        """Keep them through `redis`."""
        self._redis = redis
        self._key = keys.promises(name)
        # A pool has a hundred connections, and there may be more clients than that.
        self._turns = asyncio.Semaphore(TURNS)
        self._done: set[str] = set()
        self._woken = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Forget what is done, for the length of the block; what is left at its end is forgotten, too."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            await end_tasks([task])
            with suppress(RedisError):
                await self._sweep()

    async def keep(self, submissions: Sequence[Submission]) -> None:
        """Write down orders that are about to be accepted.

        Raises:
            NoBroker: they could not be written, and are not to be accepted.
        """
        told: dict[Any, Any] = {
            each.id: Promise(client=each.client, device=each.device, request=each.request).model_dump_json(
                round_trip=True
            )
            for each in submissions
            if each.request is not None
        }
        if not told:
            return
        try:
            async with self._turns:
                await self._redis.hset(self._key, mapping=told)
        except RedisError as error:
            raise NoBroker(f"The broker does not take the order: {error}.") from error

    def fulfil(self, submission: Submission) -> None:
        """Note that an order has its reply."""
        self._done.add(submission.id)
        self._woken.set()

    async def left(self) -> list[Promise]:
        """Read what an earlier gateway of this name did not come to, oldest first.

        Raises:
            NoBroker: the broker does not answer.
        """
        try:
            texts = [text async for _, text in self._redis.hscan_iter(self._key, count=CHUNK)]
        except RedisError as error:
            raise NoBroker(f"The broker does not answer: {error}.") from error
        found = [promise for text in texts if (promise := _read(text)) is not None]
        return sorted(found, key=lambda promise: promise.request.submitted_at)

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._sweep()
            except RedisError as error:
                log.warning("The broker is not told what is done, trying again: %s", error)
                self._woken.set()
                await asyncio.sleep(PAUSE_S)

    async def _sweep(self) -> None:
        while self._done:
            some = list(self._done)[:CHUNK]
            await self._redis.hdel(self._key, *some)
            self._done.difference_update(some)


def _read(text: str) -> Promise | None:
    try:
        return Promise.model_validate_json(text)
    except ValidationError as error:
        log.error("an order of another release is passed over: %s", error)
        return None
