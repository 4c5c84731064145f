"""What a client waits for: the requests that it sent and that have no reply yet."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from drkernel_q.errors import DrkqError, InfrastructureFailure
from drkernel_q.evaluation import Reply
from drkernel_q.queue.message import Message
from drkernel_q.request import Request

#: Replies of this time, and this many at most, are kept in case that the broker forgets them before they are stored.
RECENT_S = 60.0
RECENT_MOST = 500


@dataclass(slots=True, eq=False)
class Pending:
    """One request on its way."""

    request: Request
    task: str
    queue: str
    message: Message
    future: asyncio.Future[Reply]
    content_keys: tuple[str, ...] = ()
    """Keys under which there may be facts already, one for each kind of worker that could find them."""
    flight_key: str = ""
    """Key of what is asked for, while it is asked for; empty when it is to be found out anew."""
    leader: str | None = None
    """Id of another client's request for the same thing, whose reply is this one's too."""
    leader_list: str = ""
    """Redis list that the message of that request was pushed on."""
    waiters: int = 0
    """Coroutines that await the reply now."""
    sequence: int = 0
    """Place in the order in which this client published; 0 before that."""
    published_at: float = 0.0
    """Monotonic seconds of the last publishing."""

    @property
    def list_key(self) -> str:
        """Redis list that holds the message until a worker takes it."""
        return self.leader_list or self.message.key

    @property
    def id(self) -> str:
        """Id of the request."""
        return self.request.id

    def settle(self, outcome: Reply | DrkqError) -> None:
        """Give everybody who waits the reply, or the error; the first one stays."""
        if self.future.done():
            return
        if isinstance(outcome, Reply):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)
            # Marked as seen: a handle that nobody awaits is not worth a log line of asyncio's.
            self.future.exception()


@dataclass(slots=True)
class PendingSet:
    """The pending requests by id, and how far the workers have come in each list that they take from."""

    _by_id: dict[str, Pending] = field(default_factory=dict)
    _sequence: int = 0
    _answered: dict[str, int] = field(default_factory=dict)
    """By list key, the highest sequence number that has a reply."""
    _recent: deque[tuple[float, Request, Reply]] = field(default_factory=lambda: deque(maxlen=RECENT_MOST))

    def __len__(self) -> int:
        """Count the requests that have no reply yet."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending]:
        """Go over a copy, so that the set may change meanwhile."""
        return iter(tuple(self._by_id.values()))

    def get(self, request_id: str) -> Pending | None:
        """Find a request that has no reply yet."""
        return self._by_id.get(request_id)

    def add(self, pending: Pending) -> None:
        """Wait for one more."""
        self._by_id[pending.id] = pending

    def published(self, pending: Pending) -> None:
        """Note that its message, or that of the request whose reply it gets, is in the broker."""
        self._sequence += 1
        pending.sequence = self._sequence
        pending.published_at = time.monotonic()

    def overtaken(self, pending: Pending) -> bool:
        """Whether a message that this client pushed later on the same list already has its reply."""
        return pending.leader is None and pending.sequence < self._answered.get(pending.message.key, 0)

    def fail(self, pending: Pending, error: DrkqError) -> None:
        """End the wait with an error."""
        self._by_id.pop(pending.id, None)
        pending.settle(error)

    def receive(self, request_id: str, text: str) -> None:
        """Take the reply to a request as it came from the broker; one that nobody waits for is dropped."""
        outcome: Reply | DrkqError
        try:
            outcome = Reply.model_validate_json(text).shared_with(request_id)
        except ValidationError as error:
            outcome = InfrastructureFailure(
                f"The reply cannot be read; a worker of another release wrote it ({error.error_count()} errors)."
            )
        self.answer(request_id, outcome)

    def answer(self, request_id: str, outcome: Reply | DrkqError) -> None:
        """End the wait with what came of it."""
        pending = self._by_id.pop(request_id, None)
        if pending is None:
            return
        if pending.leader is None:
            key = pending.message.key
            self._answered[key] = max(self._answered.get(key, 0), pending.sequence)
        if isinstance(outcome, Reply):
            self._recent.append((time.monotonic(), pending.request, outcome))
        pending.settle(outcome)

    def recent(self) -> list[tuple[Request, Reply]]:
        """List the last replies, which the store may not have yet."""
        since = time.monotonic() - RECENT_S
        return [(request, reply) for at, request, reply in self._recent if at >= since]
