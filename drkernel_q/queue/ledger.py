"""The ledger: who works on a request, how often it was tried, and the one reply that it gets.

Celery delivers at least once. The ledger makes that once in effect: a delivery must claim its request, a
claim has a fence, and only the holder of the newest fence can finish. Attempts are counted when claimed, so
that a request which kills its workers ends after `MAX_ATTEMPTS`. Every step is one Lua script, so a broker or
worker that dies in between leaves no half step; leases are measured by the broker's clock, so workers' clocks
do not matter.
"""

import json
import uuid
from enum import StrEnum
from typing import Any, cast

from pydantic_core import PydanticSerializationError
from redis import Redis

from drkernel_q.evaluation import Reply
from drkernel_q.queue import keys
from drkernel_q.queue.app import LEASE_S, VISIBILITY_TIMEOUT_S
from drkernel_q.request import Request
from drkernel_q.value import Value

#: Claims of a request, the first included, before it is given up.
MAX_ATTEMPTS = 3
#: How long a reply can be fetched by whoever missed it on the stream.
RESULT_TTL_S = 3600
#: How long a claim is remembered; longer than any delivery can be late.
CLAIM_TTL_S = int(VISIBILITY_TIMEOUT_S) + 4 * 3600
#: Replies that a client's stream holds at most; whoever falls behind further looks the rest up by key.
REPLY_STREAM_LENGTH = 100_000

_EMIT = """
local function emit(streams, reply, limit)
  for _, stream in ipairs(streams) do
    redis.call('XADD', stream, 'NOMKSTREAM', 'MAXLEN', '~', limit, '*', 'reply', reply)
  end
end
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
"""

# The nonce lets redis-py repeat a claim whose answer was lost without counting it twice.
# A live lease of the same owner is the worker's own dead pool child: a worker has one evaluation at a time.
_CLAIM = (
    _EMIT
    + """
local record, result, cancel, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, nonce, lease_ms, limit, ttl_s, length = unpack(ARGV)
local old = redis.call('HMGET', record,
  'owner', 'expires_ms', 'attempt', 'fence', 'finished', 'nonce', 'state')
local attempt, fence = tonumber(old[3]) or 0, tonumber(old[4]) or 0
local reply = redis.call('GET', result)
if reply or old[5] then
  if reply then emit(redis.call('SMEMBERS', waiters), reply, length) end
  redis.call('DEL', waiters)
  return {'finished', attempt, fence}
end
if old[6] == nonce then return {old[7], attempt, fence} end
local now = now_ms()
if old[1] and old[1] ~= owner and tonumber(old[2]) > now then return {'held', attempt, fence} end
local state = 'claimed'
if redis.call('EXISTS', cancel) == 1 then
  state = 'cancelled'
elseif attempt >= tonumber(limit) then
  state = 'exhausted'
else
  attempt = attempt + 1
end
fence = fence + 1
redis.call('HSET', record, 'owner', owner, 'expires_ms', now + tonumber(lease_ms), 'attempt', attempt,
  'fence', fence, 'nonce', nonce, 'state', state)
redis.call('EXPIRE', record, ttl_s)
return {state, attempt, fence}
"""
)

_EXTEND = (
    _EMIT
    + """
local old = redis.call('HMGET', KEYS[1], 'fence', 'finished')
if old[1] ~= ARGV[1] or old[2] then return 0 end
redis.call('HSET', KEYS[1], 'expires_ms', now_ms() + tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
)

_RELEASE = """
local old = redis.call('HMGET', KEYS[1], 'fence', 'finished', 'attempt', 'state')
if old[1] ~= ARGV[1] or old[2] then return 0 end
if old[4] == 'claimed' then redis.call('HINCRBY', KEYS[1], 'attempt', -1) end
redis.call('HSET', KEYS[1], 'expires_ms', 0, 'state', 'released', 'nonce', '')
return 1
"""

_FINISH = (
    _EMIT
    + """
local record, result, waiters, results = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fence, request, reply, stored, result_ttl_s, ttl_s, length, reply_to = unpack(ARGV)
local old = redis.call('HMGET', record, 'fence', 'finished')
if old[2] then return old[2] == fence and 1 or 0 end
if old[1] ~= fence then return 0 end
redis.call('SET', result, reply, 'EX', result_ttl_s)
redis.call('XADD', results, '*', 'request', request, 'reply', stored)
if reply_to ~= '' then redis.call('SADD', waiters, reply_to) end
emit(redis.call('SMEMBERS', waiters), reply, length)
redis.call('DEL', waiters)
redis.call('HSET', record, 'finished', fence)
redis.call('EXPIRE', record, ttl_s)
return 1
"""
)


class ClaimState(StrEnum):
    """What a delivery found when it claimed its request, and what the worker does."""

    CLAIMED = "claimed"
    """It is this worker's: evaluate, extend, finish."""
    FINISHED = "finished"
    """It has its reply, which was sent again to whoever waits: acknowledge."""
    HELD = "held"
    """Another worker is at it: acknowledge."""
    EXHAUSTED = "exhausted"
    """It was tried too often: finish it with an infrastructure failure that says so."""
    CANCELLED = "cancelled"
    """Nobody wants it: finish it with the failure `cancelled`."""


class Claim(Value):
    """The right to finish a request, for as long as no newer claim was given out."""

    request_id: str
    owner: str
    state: ClaimState
    attempt: int
    """Which claim of the request this is, from 1; the number of attempts made, when exhausted."""
    fence: int

    @property
    def wants_reply(self) -> bool:
        """Whether the holder must finish it."""
        return self.state in {ClaimState.CLAIMED, ClaimState.EXHAUSTED, ClaimState.CANCELLED}


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
        self._claim = redis.register_script(_CLAIM)
        self._extend = redis.register_script(_EXTEND)
        self._release = redis.register_script(_RELEASE)
        self._finish = redis.register_script(_FINISH)

    def claim(self, request_id: str, owner: str, lease_s: float = LEASE_S) -> Claim:
        """Claim a request for `owner`, the id of a worker that does one evaluation at a time."""
        answer = self._claim(
            keys=[
                keys.claim(request_id),
                keys.result(request_id),
                keys.cancel(request_id),
                keys.waiters(request_id),
            ],
            args=[
                owner,
                uuid.uuid4().hex,
                int(lease_s * 1000),
                MAX_ATTEMPTS,
                CLAIM_TTL_S,
                REPLY_STREAM_LENGTH,
            ],
        )
        state, attempt, fence = cast("list[Any]", answer)
        return Claim(
            request_id=request_id,
            owner=owner,
            state=ClaimState(state),
            attempt=int(attempt),
            fence=int(fence),
        )

    def extend(self, claim: Claim, lease_s: float = LEASE_S) -> bool:
        """Hold the claim for another `lease_s`; False when it is lost, and then the work is in vain."""
        args = [claim.fence, int(lease_s * 1000), CLAIM_TTL_S]
        return bool(self._extend(keys=[keys.claim(claim.request_id)], args=args))

    def release(self, claim: Claim) -> bool:
        """Give the claim back as if it had not been made, for a worker that must stop; False when it is lost.

        The delivery is then to be requeued (`celery.exceptions.Reject(requeue=True)`).
        """
        return bool(self._release(keys=[keys.claim(claim.request_id)], args=[claim.fence]))

    def finish(self, claim: Claim, request: Request, reply: Reply) -> bool:
        """Store and send the reply; False, and nothing is stored, when the claim is lost.

        Artefacts go to the store alone: clients have no use for them, and their streams hold many replies.
        """
        answer = self._finish(
            keys=[
                keys.claim(claim.request_id),
                keys.result(claim.request_id),
                keys.waiters(claim.request_id),
                keys.RESULTS,
            ],
            args=[
                claim.fence,
                encode(request),
                encode(reply.model_copy(update={"artefacts": None})),
                encode(reply),
                RESULT_TTL_S,
                CLAIM_TTL_S,
                REPLY_STREAM_LENGTH,
                request.reply_to or "",
            ],
        )
        return bool(answer)

    def is_cancelled(self, request_id: str) -> bool:
        """Whether nobody wants the request any more."""
        return bool(self._redis.exists(keys.cancel(request_id)))
