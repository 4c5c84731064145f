"""EvaluationQueue: the asyncio client. Thousands of awaited requests cost a few connections and no thread."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from redis.exceptions import RedisError

from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.errors import Cancelled, DrkqError, InfrastructureFailure
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Reply
from drkernel_q.queue import inbox, keys
from drkernel_q.queue.app import AUDIT, EVALUATE, as_task, celery_app
from drkernel_q.queue.archive import Archive, Memory
from drkernel_q.queue.connection import broker_url, connect_async
from drkernel_q.queue.handle import Handle
from drkernel_q.queue.inbox import Inbox
from drkernel_q.queue.message import Message, message
from drkernel_q.queue.pending import Pending, PendingSet
from drkernel_q.queue.publisher import Publisher
from drkernel_q.queue.registry import WorkerCard
from drkernel_q.queue.routing import AUTO
from drkernel_q.queue.turns import list_name
from drkernel_q.queue.view import View
from drkernel_q.queue.watch import Patience, Watch
from drkernel_q.request import Priority, Request
from drkernel_q.settings import Settings
from drkernel_q.value import content_hash

#: Messages in one list beyond which `submit` waits, so that a client cannot fill the broker.
MAX_DEPTH = 2000
#: Cancellations still unsent when the client closes get this long.
CLOSE_S = 2.0
#: Longest wait for the store, which is written to in milliseconds unless the host is very busy.
WRITTEN_S = 5.0


class EvaluationQueue:
    """The asyncio client of the job queue.

    ```
    async with EvaluationQueue(settings) as queue:
        evaluation = await queue.evaluate(request)
        async for reply in queue.evaluate_many(requests, in_flight=64):
            ...
    ```
    """

    def __init__(
        self,
        broker: Settings | str,
        *,
        archive: Archive | None = None,
        recorded: str | None = None,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        max_depth: int = MAX_DEPTH,
        returns: bool = False,
    ) -> None:
        """Name the broker, by settings or by URL; nothing is sent before `async with`.

        An archive, the store, knows replies that the broker has forgotten. Facts in it that were recorded on devices
        of the kind `recorded` answer whatever device is asked for (docs/decisions/0012). Who `returns` for what is
        still pending at the end does not cancel it then, and submits it again later.
        """
        self._url = broker_url(broker)
        self._patience = patience
        self._max_depth = max_depth
        self._returns = returns
        self._stream = keys.reply_stream(uuid.uuid4().hex)
        self._app = celery_app(self._url)
        self._redis = connect_async(self._url)
        self._reader = connect_async(self._url, socket_timeout_s=inbox.SOCKET_TIMEOUT_S)
        self._pending = PendingSet()
        self._sending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._memory = Memory(archive, recorded)
        self._view = View(self._redis, patience)
        self._publisher = Publisher(
            self._redis, self._pending, self._view.depths, stream=self._stream, patience_s=patience.broker_s
        )
        self._inbox = Inbox(
            self._reader,
            self._pending,
            stream=self._stream,
            restarted=self._record_again,
            patience_s=patience.broker_s,
        )
        self._watch = Watch(
            self._redis,
            self._pending,
            reconnected=self._inbox.reconnected,
            cards=self._view.workers,
            republish=self._republish,
            abandon=self._abandon,
            memory=self._memory,
            patience=patience,
        )
        self._lane = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: InfrastructureFailure | None = None

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NoBroker: the broker does not answer, or refuses the password.
        """
        connecting = asyncio.create_task(self._view.enter(self._url))
        try:
            self._lane = await asyncio.shield(connecting)
        except BaseException:  # a cancellation too leaves a connection behind
            await end_tasks([connecting])
            await self._disconnect()
            raise
        for run in (self._publisher.run, self._inbox.run, self._watch.run):
            task = asyncio.create_task(run())
            task.add_done_callback(self._stopped)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what is still pending, unless it will be asked for again, and disconnect."""
        if not self._returns:
            for pending in self._pending:
                self._cancel(pending)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._publisher.drain()
        await end_tasks([*self._tasks, *self._view.tasks])
        with suppress(RedisError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._redis.delete(self._stream)
        await self._disconnect()

    async def submit(
        self,
        request: Request,
        *,
        device: str = AUTO,
        task: str | None = None,
        priority: Priority | None = None,
    ) -> Handle:
        """Send a request, once the broker has it; waits while its queue is full.

        Task and priority are those that the request is made for, unless they are named. A request whose id is already
        pending here is not sent again. One that is not to be `fresh` is answered by an evaluation of the same thing
        under the same conditions, if there is one or one is under way (`Reply.cached`).

        Raises:
            NoDevice: `device` names no device.
            NoWorker: nobody serves the device.
            NoBroker: the broker went away and did not come back.
        """
        if self._broken is not None:
            raise self._broken
        # Two at once would both find it not pending yet, and one of them would wait for ever.
        lock = self._sending.setdefault(request.id, asyncio.Lock())
        async with lock:
            pending = self._pending.get(request.id)
            if pending is None:
                task = task or (AUDIT if isinstance(request, AuditRequest) else EVALUATE)
                queue = await self._view.route(device)
                changes = {"reply_to": self._stream, "priority": priority or request.priority}
                pending = await self._prepare(as_task(task, request.model_copy(update=changes)), task, queue)
                if not pending.future.done():
                    await self._publish(pending)
        return Handle(pending, self._cancel)

    async def _prepare(self, request: Request, task: str, queue: str) -> Pending:
        """Make ready to wait for a request; it may have its reply already, from the archive."""
        text = self._message(task, request, queue)
        pending = Pending(request, task, queue, text, asyncio.get_running_loop().create_future())
        if isinstance(request, EvaluationRequest) and not request.fresh:
            conditions = [card.conditions for card in await self._view.serving(queue)]
            pending.content_keys = tuple(sorted({request.content_key(each) for each in conditions}))
            pending.flight_key = content_hash("flight", queue, str(request.deadline_s), *pending.content_keys)
            reply = await self._memory.recorded(request) or await self._memory.evaluation(pending.content_keys)
            if reply is not None:
                known = reply.shared_with(request.id)
                self._publisher.record(request, known)
                pending.settle(known)
        return pending

    async def _publish(self, pending: Pending) -> None:
        await self._view.room(pending.message.key, self._max_depth)
        self._pending.add(pending)
        try:
            await asyncio.shield(self._publisher.publish(pending))
        except asyncio.CancelledError:
            self._cancel(pending)
            raise
        if pending.future.done() and (error := pending.future.exception()) is not None:
            raise error

    async def evaluate(
        self,
        request: EvaluationRequest,
        *,
        device: str = AUTO,
        task: str | None = None,
        priority: Priority | None = None,
        timeout_s: float | None = None,
    ) -> Evaluation:
        """Submit a request and wait for its evaluation.

        Raises:
            BadProblem: the reference problem cannot be used.
            TimedOut: the evaluation passed its deadline, or nothing came within `timeout_s`.
            InfrastructureFailure: it failed for a reason that is not the kernel's.
            Cancelled: it was cancelled.
        """
        handle = await self.submit(request, device=device, task=task, priority=priority)
        return await handle.evaluation(timeout_s)

    async def audit(
        self,
        request: AuditRequest,
        *,
        device: str = AUTO,
        priority: Priority | None = None,
        timeout_s: float | None = None,
    ) -> Audit:
        """Submit a request for an audit and wait for it; raises what `evaluate` raises, except for BadProblem."""
        handle = await self.submit(request, device=device, priority=priority)
        return await handle.audit(timeout_s)

    async def evaluate_many(
        self,
        requests: Iterable[Request],
        *,
        in_flight: int = 64,
        device: str = AUTO,
        task: str | None = None,
        priority: Priority | None = None,
    ) -> AsyncGenerator[Reply]:
        """Yield replies as they come, to evaluations or audits, with at most `in_flight` requests on their way.

        What is on its way when the iteration ends early is cancelled.
        """
        finished: asyncio.Queue[Handle] = asyncio.Queue()
        handles: dict[str, Handle] = {}
        todo = iter(requests)
        request = next(todo, None)
        try:
            while request is not None or handles:
                while request is not None and len(handles) < max(1, in_flight) and finished.empty():
                    handle = await self.submit(request, device=device, task=task, priority=priority)
                    if handle.id not in handles:
                        handles[handle.id] = handle
                        handle.add_done_callback(finished.put_nowait)
                    request = next(todo, None)
                handle = await finished.get()
                del handles[handle.id]
                yield await handle
        finally:
            for handle in handles.values():
                handle.cancel()

    async def workers(self) -> Sequence[WorkerCard]:
        """List the live workers, as of half a second ago at most."""
        return await self._view.workers()

    async def device_kinds(self, device: str = AUTO) -> frozenset[str]:
        """Kinds of the devices that a request for `device` may come to; raises what `submit` raises."""
        cards = await self._view.serving(await self._view.route(device))
        return frozenset(card.device_kind for card in cards)

    async def depth(self, queue: str) -> int:
        """Count the messages that wait in a queue, over all priorities."""
        return await self._view.depth(queue)

    async def written(self, timeout_s: float = WRITTEN_S) -> bool:
        """Wait until replies that have come are in the store too; return whether they are in time.

        A persister writes them, a moment after whoever asked has them. Where there is none, nobody waits.
        """
        return await self._view.written(timeout_s)

    async def _disconnect(self) -> None:
        await self._reader.aclose()
        await self._redis.aclose()

    def _message(self, task: str, request: Request, queue: str) -> Message:
        return message(self._app, task, request, list_name=list_name(queue, request.priority, self._lane))

    def _republish(self, pending: Pending) -> None:
        """Send a lost message again, as a new one: kombu tells messages apart by their tag.

        Nobody else's request is relied upon any more.
        """
        pending.content_keys, pending.flight_key = (), ""
        pending.leader, pending.leader_list = None, ""
        pending.message = self._message(pending.task, pending.request, pending.queue)
        self._publisher.publish(pending)

    def _record_again(self) -> None:
        """Give the last replies to a broker that may have forgotten them; the store keeps each once."""
        for request, reply in self._pending.recent():
            self._publisher.record(request, reply)

    def _cancel(self, pending: Pending) -> None:
        self._abandon(pending, Cancelled())

    def _abandon(self, pending: Pending, error: DrkqError) -> None:
        """End the wait, and tell whichever worker comes to it."""
        if not pending.future.done():
            self._pending.fail(pending, error)
            self._publisher.cancel(pending)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Leave nobody waiting for a task of ours that broke: a bug, but not a hang."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._broken = InfrastructureFailure(f"The queue client stopped: {error!r}.")
        for pending in self._pending:
            self._pending.fail(pending, self._broken)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they end: redis-py writes by `wait_for`, which swallows some before Python 3.12."""
    tasks = list(tasks)
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)
    await asyncio.gather(*tasks, return_exceptions=True)
