"""The archive: what a client may look up when the broker does not know, or no longer; the store, where there is one.

A look takes milliseconds of a thread, so only submissions and replies that are missed are worth one.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from drkernel_q.environment import Conditions
from drkernel_q.errors import DrkqError
from drkernel_q.evaluation import EvaluationRequest, Reply

#: An evaluation this young answers a request for the same thing.
LIFETIME = timedelta(days=7)
_EVER = datetime(1970, 1, 1, tzinfo=UTC)

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class Archive(Protocol):
    """What `drkernel_q.store.Store` offers for this."""

    def find(self, request_id: str) -> Reply | None:
        """Find the reply to a request."""

    def find_content(self, content_keys: Collection[str], since: datetime) -> Reply | None:
        """Find the latest evaluation with one of these keys that finished at `since` or later, and lasts."""

    def conditions(self, device_kind: str) -> Collection[Conditions]:
        """Find under which conditions evaluations on a kind of device were made."""


class Memory:
    """The archive as the client uses it: never in its way, and of no matter when it cannot be read."""

    def __init__(self, archive: Archive | None, recorded: str | None = None) -> None:
        """Use an archive, or none; `recorded` is a kind of device whose facts stand for those of any."""
        self._archive = archive
        self._recorded = recorded
        self._conditions: Collection[Conditions] | None = None

    async def reply(self, request_id: str) -> Reply | None:
        """Find the reply to a request."""
        archive = self._archive
        return None if archive is None else await self._ask(lambda: archive.find(request_id))

    async def evaluation(self, content_keys: Collection[str]) -> Reply | None:
        """Find facts that answer a request with one of these content keys."""
        archive = self._archive
        if archive is None or not content_keys:
            return None
        since = datetime.now(UTC) - LIFETIME
        return await self._ask(lambda: archive.find_content(content_keys, since))

    async def recorded(self, request: EvaluationRequest) -> Reply | None:
        """Find facts about the same kernel, judged in the same way, that were recorded on the device that is named.

        They are of any age: a file of them is kept because that device is not at hand.
        """
        archive, kind = self._archive, self._recorded
        if archive is None or kind is None:
            return None
        if self._conditions is None:
            self._conditions = await self._ask(lambda: archive.conditions(kind))
        keys = {request.content_key(each) for each in self._conditions or ()}
        return await self._ask(lambda: archive.find_content(keys, _EVER)) if keys else None

    async def _ask(self, look: Callable[[], Answer | None]) -> Answer | None:
        try:
            return await asyncio.to_thread(look)
        except DrkqError as error:
            log.warning("The store cannot be asked: %s", error)
            return None
