"""A submission: one order that was accepted, from the line in which it waits to its reply."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from drkernel_q.errors import BadProblem, Cancelled, DrkqError, TimedOut
from drkernel_q.evaluation import EvaluationRequest, Failure, Reply
from drkernel_q.queue.handle import Handle
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.value import Value

#: What a submission weighs beside its sources, bytes, about.
OVERHEAD_BYTES = 2_000


class State(StrEnum):
    """How far a submission is."""

    WAITING = "waiting"
    """It waits in the gateway for its turn."""
    QUEUED = "queued"
    """It is in the broker."""
    RUNNING = "running"
    """A worker is at it."""
    DONE = "done"
    """The reply is there: an evaluation, or why there is none."""


class SubmissionView(Value):
    """What a client is told about a submission."""

    id: str
    state: State
    problem: str | None = None
    """Name of the problem; None when the reply is all that is still known."""
    submitted_at: str | None = None
    """UTC, ISO 8601."""
    device: str | None = None
    """Where it is being judged, as `cuda:0 of HOST`."""
    reply: Reply | None = None
    """The reply, once it is there."""


class Submission:
    """One accepted order. Its states only go forward, and whoever waits is woken at each."""

    def __init__(self, client: str, request: EvaluationRequest, device: str) -> None:
        """Begin to wait."""
        self.client = client
        self.id = request.id
        self.problem = request.problem.name
        self.priority = request.priority
        self.submitted_at = request.submitted_at
        self.device = device
        self.digest = order_digest(request, device)
        self.size_bytes = len(request.problem.source) + len(request.kernel.source) + OVERHEAD_BYTES
        self.request: EvaluationRequest | None = request
        """None once the reply is there."""
        self._accepted_at = time.monotonic()
        self.cancelled = False
        self.settled = False
        """Whether it was counted out of those that have no reply."""
        self._handle: Handle | None = None
        self._packed: bytes | None = None
        self._watchers: set[asyncio.Event] = set()

    @property
    def age_s(self) -> float:
        """Seconds since it was accepted."""
        return time.monotonic() - self._accepted_at

    @property
    def done(self) -> bool:
        """Whether the reply is there."""
        return self._packed is not None

    @property
    def sent(self) -> bool:
        """Whether it is, or was, in the broker."""
        return self._handle is not None

    @property
    def reply_bytes(self) -> int:
        """Size of the reply, for as long as it is kept."""
        return len(self._packed or b"")

    def reply(self) -> Reply | None:
        """Unpack the reply, if it is there."""
        return None if self._packed is None else Reply.model_validate_json(self._packed)

    def send(self, handle: Handle) -> None:
        """Note that it is in the broker."""
        self._handle = handle
        self._wake()

    def finish(self, reply: Reply) -> None:
        """Take the reply; the first one stays."""
        if self._packed is None:
            self._packed = pack(reply)
            self.request, self._handle = None, None
            self._wake()

    def fail(self, error: DrkqError) -> None:
        """Take the reason why there is no reply of a worker's."""
        failure = Failure(kind=failure_kind(error), message=str(error))
        now = datetime.now(UTC).isoformat()
        self.finish(Reply(id=self.id, attempt=1, worker="gateway", failure=failure, finished_at=now))

    def cancel(self) -> None:
        """Give it up; nothing happens to one that is done."""
        if self.done:
            return
        self.cancelled = True
        if self._handle is not None:
            self._handle.cancel()
        self.fail(Cancelled())

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it is done; False when it was not in time."""
        end = time.monotonic() + timeout_s
        while not self.done:
            if (left_s := end - time.monotonic()) <= 0 or not await change([self], left_s):
                return self.done
        return True

    def watch(self, event: asyncio.Event) -> None:
        """Have an event set at each change of state."""
        self._watchers.add(event)

    def unwatch(self, event: asyncio.Event) -> None:
        """Leave an event alone."""
        self._watchers.discard(event)

    def view(self, cards: Sequence[WorkerCard] = (), *, whole: bool = True) -> SubmissionView:
        """Describe it; the cards of workers tell where it is being judged. Less than `whole` has no reply."""
        card = None if self.done else next((card for card in cards if card.request_id == self.id), None)
        if self.done:
            state = State.DONE
        elif card is not None:
            state = State.RUNNING
        else:
            state = State.QUEUED if self.sent else State.WAITING
        return SubmissionView(
            id=self.id,
            state=state,
            problem=self.problem,
            submitted_at=self.submitted_at,
            device=None if card is None else f"{card.device} of {card.host}",
            reply=self.reply() if whole else None,
        )

    def _wake(self) -> None:
        for event in self._watchers:
            event.set()


async def change(submissions: Sequence[Submission], timeout_s: float) -> bool:
    """Wait for the next change of state of any of them; False when there was none in time."""
    event = asyncio.Event()
    for submission in submissions:
        submission.watch(event)
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    finally:
        for submission in submissions:
            submission.unwatch(event)
    return True


def order_digest(request: EvaluationRequest, device: str) -> int:
    """Tell orders apart that have the same id; for this process alone."""
    told = request.model_dump_json(exclude={"submitted_at", "priority"}, round_trip=True)
    return hash((told, device))


def pack(reply: Reply) -> bytes:
    """Write a reply as it is kept: without raw measurements, which only the store is given."""
    return reply.model_dump_json(exclude={"artefacts"}, round_trip=True).encode()


def failure_kind(error: DrkqError) -> Literal["infrastructure", "problem", "cancelled", "deadline"]:
    """Say of an error what kind of failure it is."""
    match error:
        case Cancelled():
            return "cancelled"
        case TimedOut():
            return "deadline"
        case BadProblem():
            return "problem"
        case _:
            return "infrastructure"
