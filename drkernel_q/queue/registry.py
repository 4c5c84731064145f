"""The registry: which workers live, on what device, and what they do. An old card expires."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, cast

from pydantic import Field, ValidationError
from redis import Redis
from redis import asyncio as aioredis

from drkernel_q.environment import Conditions
from drkernel_q.queue import keys
from drkernel_q.value import Value

#: How long a card lives without a refresh; refresh it each third of that.
CARD_TTL_S = 15.0
#: How long the reason is told to those who wait for a worker that was given up.
LOSS_TTL_S = 3600


class WorkerState(StrEnum):
    """What a worker is up to."""

    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    """Finishes what it has and takes nothing new."""
    QUARANTINED = "quarantined"
    """Its device failed a health check; it takes nothing until the device is well again."""


class WorkerCard(Value):
    """What a worker says about itself."""

    id: str
    """Unique among live workers and the same over restarts of its pool child; the owner of its claims."""
    host: str
    device: str
    """`cuda:0` or `cpu`."""
    device_name: str
    """Such as `NVIDIA H200`."""
    device_kind: str
    """What results may be compared within: `sm_90/NVIDIA H200` or `cpu`."""
    capabilities: tuple[str, ...] = ()
    """Such as `sm_90` and `nvidia-h200`."""
    queues: tuple[str, ...]
    """The queues it takes from (`drkernel_q.queue.app.queue_names`); none while it is quarantined."""
    pid: int
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of what decides results, as in `Conditions`."""
    isolation: tuple[str, ...] = ()
    """Sandbox measures that are active for candidates."""
    state: WorkerState = WorkerState.IDLE
    reason: str | None = None
    """Why it is quarantined."""
    request_id: str | None = None
    """The request it is working on."""
    started_at: str
    """UTC, ISO 8601."""
    last_progress: str
    """UTC, ISO 8601: when it last started or finished something."""

    @property
    def kind(self) -> Literal["cuda", "cpu"]:
        """Kind of its device."""
        return "cpu" if self.device.partition(":")[0] == "cpu" else "cuda"

    @property
    def conditions(self) -> Conditions:
        """What decides facts here beside what is asked for."""
        return Conditions(device_kind=self.device_kind, versions=self.versions)

    @property
    def accepts(self) -> bool:
        """Whether it takes new requests."""
        return self.state in {WorkerState.IDLE, WorkerState.BUSY}


def announce(redis: Redis, card: WorkerCard, *, ttl_s: float = CARD_TTL_S) -> None:
    """Show the card for `ttl_s`; repeat well within that."""
    pipe = redis.pipeline(transaction=True)
    pipe.set(keys.worker(card.id), card.model_dump_json(), px=int(ttl_s * 1000))
    pipe.sadd(keys.WORKERS, card.id)
    if card.queues:
        pipe.delete(*(keys.loss(queue) for queue in card.queues))
    pipe.execute()


def withdraw(redis: Redis, worker_id: str) -> None:
    """Take the card down at once."""
    pipe = redis.pipeline(transaction=True)
    pipe.delete(keys.worker(worker_id))
    pipe.srem(keys.WORKERS, worker_id)
    pipe.execute()


def give_up(redis: Redis, queues: Iterable[str], reason: str) -> None:
    """Tell whoever waits that the worker of these queues will not come back; a new worker takes that back."""
    pipe = redis.pipeline(transaction=True)
    for queue in queues:
        pipe.set(keys.loss(queue), reason, ex=LOSS_TTL_S)
    pipe.execute()


def workers(redis: Redis) -> list[WorkerCard]:
    """List the live workers, by host and device; forgets those that have gone."""
    ids = sorted(cast("set[str]", redis.smembers(keys.WORKERS)))
    if not ids:
        return []
    texts = cast("list[str | None]", redis.mget([keys.worker(name) for name in ids]))
    cards, gone = _sort(ids, texts)
    if gone:
        redis.srem(keys.WORKERS, *gone)
    return cards


async def workers_async(redis: aioredis.Redis) -> list[WorkerCard]:
    """List the live workers, by host and device; forgets those that have gone."""
    ids = sorted(cast("set[str]", await redis.smembers(keys.WORKERS)))
    if not ids:
        return []
    texts = cast("list[str | None]", await redis.mget([keys.worker(name) for name in ids]))
    cards, gone = _sort(ids, texts)
    if gone:
        await redis.srem(keys.WORKERS, *gone)
    return cards


def _sort(ids: list[str], texts: list[str | None]) -> tuple[list[WorkerCard], list[str]]:
    """Part the cards of the living from the ids of the gone."""
    cards, gone = [], []
    for worker_id, text in zip(ids, texts, strict=True):
        if text is None:
            gone.append(worker_id)
            continue
        try:
            cards.append(WorkerCard.model_validate_json(text))
        except ValidationError:
            # A worker of another release, whose card has other fields; nothing here could talk to it.
            continue
    return sorted(cards, key=lambda card: (card.host, card.device, card.id)), gone
