"""The counter: takes orders within bounds, sends them to the queue in fair order, and keeps replies for a while."""

import asyncio
import logging
import time
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from fastapi import HTTPException, status

from drkernel_q.errors import DrkqError, InfrastructureFailure, NoBroker, NoWorker
from drkernel_q.evaluation import EvaluationRequest, Reply
from drkernel_q.gateway.access import Client
from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.line import Line
from drkernel_q.gateway.promises import Promises
from drkernel_q.gateway.submission import Submission, order_digest
from drkernel_q.queue.client import EvaluationQueue, end_tasks
from drkernel_q.queue.handle import Handle
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.queue.routing import check_device, route, why_not

log = logging.getLogger(__name__)

#: Pauses between tries while the broker or the last worker is away: the first, doubled up to the last.
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 10.0
#: Longest wait for the broker's answer while a client waits for the gateway's, seconds.
BROKER_S = 2.0
#: How long the messages that are being sent may take when the gateway ends, seconds.
END_S = 2.0
#: When to come again, as told to whoever is refused, seconds.
RETRY_AFTER_S = 5


class Counter:
    """Every submission of this process, from its order to the end of the time that its reply is kept."""

    def __init__(
        self, queue: EvaluationQueue, promises: Promises, limits: Limits, told: Callable[[Submission, Reply], None]
    ) -> None:
        """Serve through `queue`; `told` hears of every reply."""
        self.queue = queue
        self._promises = promises
        self.limits = limits
        self.line = Line()
        self.in_flight = 0
        self.open: Tally[str] = Tally()
        """Submissions without a reply, by client."""
        self.finished = 0
        """Submissions that got their replies, ever."""
        self.waiting_bytes = 0
        self.kept_bytes = 0
        self.closing = asyncio.Event()
        """Set when the gateway is about to end: whoever waits is sent away."""
        self._told = told
        self._submissions: dict[str, Submission] = {}
        self._kept: OrderedDict[str, tuple[float, Submission]] = OrderedDict()
        """Submissions that are done, by the time at which they are forgotten."""
        self._arrived = asyncio.Event()
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[Handle]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send what arrives to the queue for the length of the block, and first what was promised before."""
        for promise in await self._promises.left():
            self._add(Submission(promise.client, promise.request, promise.device))
        dispatcher = asyncio.create_task(self._dispatch())
        try:
            yield
        finally:
            self.closing.set()
            await end_tasks([dispatcher, *self._tasks])
            if self._sending:
                await asyncio.wait(self._sending, timeout=END_S)

    async def cards(self) -> Sequence[WorkerCard]:
        """List the live workers; unlike the queue, this does not wait for a broker to come back.

        Raises:
            NoBroker: it does not answer.
        """
        with _soon():
            async with asyncio.timeout(BROKER_S):
                return await self.queue.workers()

    async def known_cards(self) -> Sequence[WorkerCard]:
        """List the live workers, or none if the broker is away."""
        try:
            return await self.cards()
        except NoBroker:
            return ()

    async def depth(self, queue: str) -> int:
        """Count the messages in a queue of the broker's; raises what `cards` raises."""
        with _soon():
            async with asyncio.timeout(BROKER_S):
                return await self.queue.depth(queue)

    def get(self, request_id: str | None) -> Submission | None:
        """Find a submission, whosever it is."""
        return self._submissions.get(request_id or "")

    def find(self, client: Client, request_id: str) -> Submission | None:
        """Find a submission of this client's."""
        found = self._submissions.get(request_id)
        return found if found is not None and found.client == client.name else None

    def of(self, client: Client) -> list[Submission]:
        """List a client's submissions, oldest first."""
        return [each for each in self._submissions.values() if each.client == client.name]

    async def accept(self, client: Client, requests: Sequence[EvaluationRequest], device: str) -> list[Submission]:
        """Accept orders, all of them or none; one that is known already is not accepted twice.

        Raises:
            HTTPException: there is no room (503), the client has too many (429), or an id is taken (409).
            NoDevice: `device` names no device.
            NoWorker: nobody serves it.
        """
        check_device(device)
        cards = await self.cards()
        if route(cards, device) is None:
            raise NoWorker(why_not(cards, device))
        self._forget()
        new: dict[str, Submission] = {}
        for request in requests:
            known = self._submissions.get(request.id) or new.get(request.id)
            if known is None:
                new[request.id] = Submission(client.name, request, device)
            elif known.client != client.name or known.digest != order_digest(request, device):
                raise HTTPException(status.HTTP_409_CONFLICT, f"The id {request.id} is that of another evaluation.")
        self._check_room(client, list(new.values()))
        for submission in new.values():
            self._add(submission)
        try:
            await self._promises.keep(list(new.values()))
        except BaseException:  # whatever it is, what nobody promised must not be done
            for submission in new.values():
                self.cancel(submission)
                self.forget(submission)
            raise
        return [self._submissions[request.id] for request in requests]

    def cancel(self, submission: Submission) -> None:
        """Give a submission up."""
        if not submission.done:
            submission.cancel()
            self.line.remove(submission)
            self._settle(submission)

    def forget(self, submission: Submission) -> None:
        """Forget a submission that is done, so that its id can be used again."""
        if self._kept.pop(submission.id, None) is not None:
            self.kept_bytes -= submission.reply_bytes
            del self._submissions[submission.id]

    def _check_room(self, client: Client, new: list[Submission]) -> None:
        limits = self.limits
        if self.open[client.name] + len(new) > limits.waiting_of_one:
            raise refused(
                status.HTTP_429_TOO_MANY_REQUESTS,
                f"{client.name} has {self.open[client.name]} evaluations without a reply; the most is "
                f"{limits.waiting_of_one}.",
            )
        size = sum(each.size_bytes for each in new)
        if self.open.total() + len(new) > limits.waiting or self.waiting_bytes + size > limits.waiting_bytes:
            raise refused(
                status.HTTP_503_SERVICE_UNAVAILABLE,
                f"The gateway is full: {self.open.total()} evaluations wait for their replies.",
            )

    def _add(self, submission: Submission) -> None:
        self._submissions[submission.id] = submission
        self.open[submission.client] += 1
        self.waiting_bytes += submission.size_bytes
        self.line.push(submission)
        self._arrived.set()

    def _settle(self, submission: Submission) -> None:
        """Move a submission whose reply is there to those that are kept."""
        if submission.settled:
            return
        submission.settled = True
        self._promises.fulfil(submission)
        self.finished += 1
        self.open[submission.client] -= 1
        if not self.open[submission.client]:
            del self.open[submission.client]
        self.waiting_bytes -= submission.size_bytes
        self._kept[submission.id] = (time.monotonic() + self.limits.keep_s, submission)
        self.kept_bytes += submission.reply_bytes
        reply = submission.reply()
        assert reply is not None
        self._told(submission, reply)
        self._forget()

    def _forget(self) -> None:
        """Forget what was kept long enough, or is too much."""
        limits = self.limits
        while self._kept:
            forget_at, oldest = next(iter(self._kept.values()))
            too_much = len(self._kept) > limits.kept or self.kept_bytes > limits.kept_bytes
            if not too_much and time.monotonic() < forget_at:
                return
            self.forget(oldest)

    async def _dispatch(self) -> None:
        while True:
            while self.in_flight >= await self._most_in_flight():
                self._freed.clear()
                await self._freed.wait()
            while (submission := self.line.pop()) is None:
                self._arrived.clear()
                await self._arrived.wait()
            task = asyncio.create_task(self._carry(submission))
            self._tasks.add(task)
            self.in_flight += 1
            task.add_done_callback(partial(self._carried, submission))

    def _send(self, request: EvaluationRequest, device: str) -> asyncio.Task[Handle]:
        task = asyncio.create_task(self.queue.submit(request, device=device))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    def _carried(self, submission: Submission, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.in_flight -= 1
        self._freed.set()
        # One that was given up because the gateway ends is taken up again when it starts.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %r", submission.id, error)
            submission.fail(InfrastructureFailure(f"The gateway failed: {error!r}."))
            self._settle(submission)

    async def _most_in_flight(self) -> int:
        able = sum(card.accepts for card in await self.known_cards())
        return max(self.limits.in_flight, self.limits.in_flight_a_worker * able)

    async def _carry(self, submission: Submission) -> None:
        """Have one submission judged."""
        try:
            submission.finish(await self._reply(submission))
        except DrkqError as error:
            submission.fail(error)
        self._settle(submission)

    async def _reply(self, submission: Submission) -> Reply:
        give_up_at, pause_s = time.monotonic() + self.limits.give_up_s, FIRST_PAUSE_S
        request = submission.request
        assert request is not None
        while True:
            try:
                # Shielded, and not awaited by its handle: both would cancel the evaluation when the gateway ends.
                handle = await asyncio.shield(self._send(request, submission.device))
                submission.send(handle)
                if submission.cancelled:
                    handle.cancel()
                arrived = asyncio.Event()
                handle.add_done_callback(lambda _: arrived.set())  # noqa: B023 - called before the next turn
                await arrived.wait()
                return await handle.reply()
            except (NoBroker, NoWorker) as error:
                if time.monotonic() > give_up_at or submission.cancelled:
                    raise
                log.warning("%s is tried again: %s", submission.id, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)


@contextmanager
def _soon() -> Iterator[None]:
    """Say of what took too long that the broker does not answer."""
    try:
        yield
    except TimeoutError as error:
        raise NoBroker("The broker does not answer.") from error


def refused(code: int, detail: str, retry_after_s: float = RETRY_AFTER_S) -> HTTPException:
    """Make the answer to whoever should come again later."""
    return HTTPException(code, detail, headers={"Retry-After": str(max(1, round(retry_after_s)))})
