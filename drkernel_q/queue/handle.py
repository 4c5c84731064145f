"""A handle: one submitted request, to await, to await with a limit, or to cancel."""

import asyncio
from collections.abc import Callable, Generator

from drkernel_q.audit import Audit
from drkernel_q.errors import BadProblem, Cancelled, DrkqError, InfrastructureFailure, TimedOut
from drkernel_q.evaluation import Evaluation, Failure, Reply
from drkernel_q.queue.pending import Pending


class Handle:
    """One submitted request. `await handle` gives its `Reply`, as often and in as many tasks as wanted.

    When a task that awaits is cancelled and nobody else awaits, the evaluation is cancelled too.
    """

    def __init__(self, pending: Pending, cancel: Callable[[Pending], None]) -> None:
        """Made by `EvaluationQueue.submit`."""
        self._pending = pending
        self._cancel = cancel

    @property
    def id(self) -> str:
        """Id of the request."""
        return self._pending.id

    @property
    def queue(self) -> str:
        """The queue that it was sent to."""
        return self._pending.queue

    def done(self) -> bool:
        """Whether the reply, or an error, is there."""
        return self._pending.future.done()

    def add_done_callback(self, callback: Callable[["Handle"], None]) -> None:
        """Call back, from the event loop, when the reply or an error is there."""
        self._pending.future.add_done_callback(lambda _: callback(self))

    def cancel(self) -> None:
        """Give it up: whoever awaits gets `Cancelled`, and a worker drops it if no other client waits."""
        self._cancel(self._pending)

    async def reply(self, timeout_s: float | None = None) -> Reply:
        """Wait for the reply.

        Raises:
            TimedOut: it did not come in time; the request goes on and can be awaited again.
            Cancelled: `cancel` was called.
            NoBroker: the broker went away and did not come back.
            NoWorker: the last worker for its queue left.
        """
        pending = self._pending
        pending.waiters += 1
        try:
            await asyncio.wait({pending.future}, timeout=timeout_s)
        except asyncio.CancelledError:
            if pending.waiters == 1:
                self.cancel()
            raise
        finally:
            pending.waiters -= 1
        if not pending.future.done():
            raise TimedOut(f"No result within {timeout_s:g} s; the evaluation may still finish.")
        return pending.future.result()

    async def evaluation(self, timeout_s: float | None = None) -> Evaluation:
        """Wait for the reply and take the evaluation out of it; raises what `reply` and `unwrap` raise."""
        return unwrap(await self.reply(timeout_s))

    async def audit(self, timeout_s: float | None = None) -> Audit:
        """Wait for the reply and take the audit out of it; raises what `reply` and `unwrap_audit` raise."""
        return unwrap_audit(await self.reply(timeout_s))

    def __await__(self) -> Generator[object, None, Reply]:
        """Wait for the reply without a limit."""
        return self.reply().__await__()


def unwrap(reply: Reply) -> Evaluation:
    """Take the evaluation out of a reply.

    Raises:
        BadProblem: the reference problem cannot be used.
        TimedOut: the evaluation passed its deadline on the worker.
        Cancelled: it was cancelled.
        InfrastructureFailure: it failed for any other reason that is not the kernel's.
    """
    if reply.evaluation is None:
        raise _reason(reply)
    return reply.evaluation


def unwrap_audit(reply: Reply) -> Audit:
    """Take the audit out of a reply; raises what `unwrap` raises, but a problem that cannot be used is no error."""
    if reply.audit is None:
        raise _reason(reply)
    return reply.audit


def _reason(reply: Reply) -> DrkqError:
    failure = reply.failure or Failure(
        kind="infrastructure", message=f"Worker {reply.worker} answered with neither facts nor a reason."
    )
    match failure.kind:
        case "problem":
            return BadProblem(failure.message)
        case "deadline":
            return TimedOut(failure.message)
        case "cancelled":
            return Cancelled(failure.message)
        case "infrastructure":
            return InfrastructureFailure(failure.message)
