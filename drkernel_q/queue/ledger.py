"""The ledger: who works on a request, how often it was tried, and the one reply that it gets.

Celery delivers at least once. The ledger makes that once in effect: a delivery must claim its request, a claim has a
fence, and only the holder of the newest fence can finish. What a claim ends with is counted: a request that cost its
worker `MAX_DEATHS` times is poisonous, one that failed for reasons of the infrastructure is tried `MAX_RETRIES` times
more, elsewhere if there is another worker. Every step is one script (`drkernel_q.queue.scripts`), so a broker or worker
that dies in between leaves no half step; leases are measured by the broker's clock, so workers' clocks do not matter.
"""

import json
import uuid
from enum import StrEnum
from typing import Any, NamedTuple, cast

from pydantic_core import PydanticSerializationError
from redis import Redis

from drkernel_q.evaluation import Reply
from drkernel_q.queue import keys, scripts
from drkernel_q.queue.app import LEASE_S, VISIBILITY_TIMEOUT_S
from drkernel_q.queue.message import Message
from drkernel_q.request import Request
from drkernel_q.value import Value

#: Workers that a request may cost before nobody tries it any more.
MAX_DEATHS = 2
#: Further attempts at a request that failed for reasons of the infrastructure.
MAX_RETRIES = 2
#: For this long a worker leaves a request that failed there to the others.
AVOID_S = 60.0
#: How long a reply can be fetched by whoever missed it on the stream, and answers others who ask for the same thing.
RESULT_TTL_S = 3600
#: How long a claim is remembered; longer than any delivery can be late.
CLAIM_TTL_S = int(VISIBILITY_TIMEOUT_S) + 4 * 3600
#: Replies that a client's stream holds at most; whoever falls behind further looks the rest up by key.
REPLY_STREAM_LENGTH = 100_000
#: A message that went back, or was sent again, is missed after this: by then Celery has put it back, and then again
#: when even a long queue is likely to have come to it.
MISSED_S = 10.0
MISSED_AGAIN_S = 600.0
#: Overdue claims that are looked at in one go, and claims that there may be at all, one a worker.
OVERDUE_MOST = 20
LEASES_MOST = 10_000


class ClaimState(StrEnum):
    """What a delivery found when it claimed its request, and what the worker does."""

    CLAIMED = "claimed"
    """It is this worker's: evaluate, extend, finish."""
    FINISHED = "finished"
    """It has its reply, which was sent again to whoever waits: acknowledge."""
    HELD = "held"
    """Another worker is at it: acknowledge."""
    ELSEWHERE = "elsewhere"
    """It has failed on this worker: leave it to the others for a while."""
    KNOWN = "known"
    """Somebody else asked for the same thing and has the facts: finish it with them."""
    POISONOUS = "poisonous"
    """It cost too many workers: finish it as crashed."""
    CANCELLED = "cancelled"
    """Nobody wants it: finish it with the failure `cancelled`."""


class Claim(Value):
    """The right to finish a request, for as long as no newer claim was given out."""

    request_id: str
    owner: str
    state: ClaimState
    attempt: int
    """Which claim of the request this is, from 1; the number of attempts made, when there is none more to make."""
    fence: int
    known: Reply | None = None
    """The reply that somebody else got for the same thing."""

    @property
    def wants_reply(self) -> bool:
        """Whether the holder must finish it."""
        return self.state in {ClaimState.CLAIMED, ClaimState.KNOWN, ClaimState.POISONOUS, ClaimState.CANCELLED}


class Retry(StrEnum):
    """What becomes of an attempt that failed."""

    AGAIN = "again"
    """It is in the queue again."""
    SPENT = "spent"
    """It was tried often enough: finish it with the failure."""
    LOST = "lost"
    """The claim is lost."""


class Overdue(NamedTuple):
    """A claim whose holder is gone, and what it takes to deliver its request again."""

    request_id: str
    fence: str
    task: str
    list_name: str
    request: str
    """JSON."""


def encode(value: Request | Reply) -> str:
    """Write a value as the JSON that `model_validate_json` reads back; computed fields are left out.

    Lone surrogates, which no JSON reader takes, become question marks: a kernel's source may hold them.
    """
    try:
        return value.model_dump_json(round_trip=True)
    except PydanticSerializationError:
        text = json.dumps(value.model_dump(mode="json", round_trip=True), ensure_ascii=False)
        return text.encode("utf-8", "replace").decode()


class Ledger:
    """The ledger as a worker's task uses it, synchronous; see the module for what it promises."""

    def __init__(self, redis: Redis) -> None:
        """Use a connection made by `drkernel_q.queue.connection.connect`; not across a fork."""
        self._redis = redis
        self._claim = redis.register_script(scripts.CLAIM)
        self._extend = redis.register_script(scripts.EXTEND)
        self._release = redis.register_script(scripts.RELEASE)
        self._retry = redis.register_script(scripts.RETRY)
        self._finish = redis.register_script(scripts.FINISH)
        self._overdue = redis.register_script(scripts.OVERDUE)
        self._revive = redis.register_script(scripts.REVIVE)

    def claim(
        self,
        request: Request,
        owner: str,
        lease_s: float = LEASE_S,
        *,
        task: str = "",
        list_name: str = "",
        content_key: str = "",
    ) -> Claim:
        """Claim a request for `owner`, the id of a worker that does one evaluation at a time.

        `task` and `list_name` are where it came from and goes again if the worker is lost. With a content key, facts
        that somebody else got under the same key are as good as new ones.
        """
        request_id = request.id
        named = (keys.claim, keys.result, keys.cancel, keys.waiters)
        answer = self._claim(
            keys=[*(make(request_id) for make in named), keys.LEASES],
            args=[
                request_id,
                owner,
                uuid.uuid4().hex,
                _ms(lease_s),
                MAX_DEATHS,
                CLAIM_TTL_S,
                REPLY_STREAM_LENGTH,
                task,
                list_name,
                encode(request),
                _content(content_key),
            ],
        )
        state, attempt, fence, known = cast("list[Any]", answer)
        return Claim(
            request_id=request_id,
            owner=owner,
            state=ClaimState(state),
            attempt=int(attempt),
            fence=int(fence),
            known=Reply.model_validate_json(known).shared_with(request_id) if state == ClaimState.KNOWN else None,
        )

    def extend(self, claim: Claim, lease_s: float = LEASE_S) -> bool:
        """Hold the claim for another `lease_s`; False when it is lost, and then the work is in vain."""
        args: list[str | int] = [claim.request_id, claim.fence, _ms(lease_s), CLAIM_TTL_S]
        return bool(self._extend(keys=[keys.claim(claim.request_id), keys.LEASES], args=args))

    def release(self, claim: Claim) -> bool:
        """Give the claim back as if it had not been made, for a worker that must stop; False when it is lost.

        The delivery is then Celery's to requeue.
        """
        args: list[str | int] = [claim.request_id, claim.fence, _ms(MISSED_S)]
        return bool(self._release(keys=[keys.claim(claim.request_id), keys.LEASES], args=args))

    def retry(self, claim: Claim, request: Request, reply: Reply, message: Message, *, others: bool) -> Retry:
        """Have a request tried again by `message` after an attempt failed; the failure is kept for the store.

        With `others`, this worker leaves it to them for a while.
        """
        answer = self._retry(
            keys=[keys.claim(claim.request_id), keys.LEASES, keys.RESULTS, message.key],
            args=[
                claim.request_id,
                claim.fence,
                claim.owner,
                MAX_RETRIES,
                _ms(AVOID_S) if others else 0,
                _ms(MISSED_AGAIN_S),
                encode(request),
                encode(reply),
                message.text,
            ],
        )
        return Retry(cast("str", answer))

    def finish(self, claim: Claim, request: Request, reply: Reply, *, content_key: str = "") -> bool:
        """Store and send the reply; False, and nothing is stored, when the claim is lost.

        Whoever asked for the same thing meanwhile gets it too; with a content key, also whoever asks later.
        Artefacts go to the store alone: clients have no use for them, and their streams hold many replies.
        """
        request_id = claim.request_id
        named = (keys.claim, keys.result, keys.waiters)
        answer = self._finish(
            keys=[
                *(make(request_id) for make in named),
                keys.RESULTS,
                keys.LEASES,
                keys.followers(request_id),
                keys.POISON,
            ],
            args=[
                request_id,
                claim.fence,
                encode(request),
                encode(reply if reply.artefacts is None else reply.model_copy(update={"artefacts": None})),
                encode(reply),
                RESULT_TTL_S,
                CLAIM_TTL_S,
                REPLY_STREAM_LENGTH,
                request.reply_to or "",
                _content(content_key),
                int(claim.state is ClaimState.POISONOUS),
            ],
        )
        return bool(answer)

    def overdue(self, margin_s: float) -> list[Overdue]:
        """List claims whose lease ended `margin_s` ago, oldest first, `OVERDUE_MOST` at most."""
        return self._looked_after(_ms(margin_s), OVERDUE_MOST, "")

    def left_by(self, owner: str) -> list[Overdue]:
        """List the claims of an owner who has just begun, and so has left them in an earlier life."""
        return self._looked_after(0, LEASES_MOST, owner)

    def _looked_after(self, *args: str | int) -> list[Overdue]:
        found = self._overdue(keys=[keys.LEASES], args=args)
        return [Overdue(*row) for row in cast("list[list[str]]", found)]

    def revive(self, overdue: Overdue, message: Message, margin_s: float | None) -> bool:
        """Deliver a request again whose holder is gone; False when somebody else did, or has it.

        Without a margin it does not matter when its lease ends.
        """
        margin = "" if margin_s is None else _ms(margin_s)
        args: list[str | int] = [overdue.request_id, overdue.fence, margin, _ms(MISSED_AGAIN_S), message.text]
        return bool(self._revive(keys=[keys.claim(overdue.request_id), keys.LEASES, message.key], args=args))

    def forget(self, request_id: str) -> None:
        """Look after a claim no more; Celery will still deliver its message when the visibility timeout is over."""
        self._redis.zrem(keys.LEASES, request_id)

    def is_cancelled(self, request_id: str) -> bool:
        """Whether nobody wants the request any more."""
        return bool(self._redis.exists(keys.cancel(request_id)))


def _content(content_key: str) -> str:
    return keys.content(content_key) if content_key else ""


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
