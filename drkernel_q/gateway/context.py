"""What the routes share: the gateway's parts, and who may do what."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, status
from fastapi.security import HTTPBearer

from drkernel_q.gateway.access import Client, Right
from drkernel_q.gateway.beginnings import Beginnings
from drkernel_q.gateway.counter import Counter
from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.metrics import Metrics
from drkernel_q.gateway.reading import Reading
from drkernel_q.gateway.submission import State, SubmissionView
from drkernel_q.settings import Settings
from drkernel_q.store import Store

#: Shown in the description of the interface; the door has looked at the token long before.
_BEARER = HTTPBearer(auto_error=False, description="A token of the gateway's file; none on a gateway without tokens.")


class Gateway:
    """The parts of one running gateway."""

    def __init__(
        self, settings: Settings, limits: Limits, counter: Counter, store: Store | None, metrics: Metrics
    ) -> None:
        """Put them together."""
        self.settings = settings
        self.limits = limits
        self.counter = counter
        self.store = store
        self.reading = Reading(store)
        self.metrics = metrics
        self.beginnings = Beginnings()
        self.started_at = time.monotonic()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Send away whoever waits, since the gateway is about to end; from any thread, or a signal."""
        self._loop.call_soon_threadsafe(self.counter.closing.set)

    async def unless_closing(self, waiting: Coroutine[Any, Any, bool]) -> bool:
        """Wait for something, but not when the gateway is about to end; then, and when it is false, return False."""
        task = asyncio.ensure_future(waiting)
        closing = asyncio.create_task(self.counter.closing.wait())
        try:
            await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
            return task.done() and task.result()
        finally:
            for each in (task, closing):
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each

    async def stored(self, client: Client, request_id: str) -> SubmissionView:
        """Find in the store what the gateway has forgotten.

        Raises:
            HTTPException: it is not there, or the client may not read the store.
        """
        found = None
        if self.store is not None and Right.READ in client.rights:
            found = await asyncio.to_thread(self.store.find, request_id)
        if found is None:
            raise not_found(request_id)
        return SubmissionView(id=request_id, state=State.DONE, reply=found)


def not_found(request_id: str) -> HTTPException:
    """Say that nothing is known of an evaluation, or that it is somebody else's."""
    return HTTPException(status.HTTP_404_NOT_FOUND, f"There is no evaluation {request_id} of yours here.")


def here(request: Request) -> Gateway:
    """Return the gateway that serves a request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def _with(*rights: Right) -> Callable[..., Client]:
    """Make what lets those through who have one of these rights."""

    def allowed(request: Request, _: Annotated[object, Depends(_BEARER)]) -> Client:
        client: Client = request.state.client
        if not client.rights & set(rights):
            raise HTTPException(status.HTTP_403_FORBIDDEN, f"This token has no right to `{rights[0].value}`.")
        return client

    return allowed


Reader = Annotated[Client, Depends(_with(Right.READ))]
Submitter = Annotated[Client, Depends(_with(Right.SUBMIT))]
Owner = Annotated[Client, Depends(_with(Right.SUBMIT, Right.READ))]
