"""Presence: what a supervisor shows of its worker's lanes, whatever these are at: alive, draining, out of service.

It also notices a Celery that takes nothing though there is something to take: its process is alive and so is its card,
and only work that is not done tells (celery#8030 and its successors).
"""

import threading
import time
from collections.abc import Iterable

from redis import Redis, RedisError

from drkernel_q.queue import keys
from drkernel_q.queue.registry import CARD_TTL_S, WorkerCard, WorkerState, announce

#: Between two looks: in service, and while the last evaluation is finished.
LOOK_S = CARD_TTL_S / 3
DRAINING_LOOK_S = 1.0
#: An idle worker that takes nothing from lists that are never empty is deaf after this; longer than a worker may leave
#: a request to the others (`drkernel_q.queue.ledger.AVOID_S`).
DEAF_S = 120.0


class Presence:
    """The cards of one worker: one for each lane."""

    def __init__(self, redis: Redis, ids: Iterable[str], lists: Iterable[str]) -> None:
        """Show nothing yet: a pool child puts its card up when it is ready. `lists` is what the worker takes from."""
        self._redis = redis
        self._ids = list(ids)
        self._lists = [keys.PREFIX + name for name in lists]
        self._seen: dict[str, WorkerCard] = {}
        self._looked_at = float("-inf")
        self._progress: set[str] = set()
        self._silent_since: float | None = None
        self.resting: WorkerCard | None = None
        """What is shown while the device is out of service."""
        self.draining = False
        """Whether the worker is told to leave."""
        self.deaf = threading.Event()
        """Set when the worker should be started anew; whoever does it clears it."""

    def run(self, ended: threading.Event) -> None:
        """Look again and again until the worker has ended."""
        while not ended.wait(DRAINING_LOOK_S):
            now = time.monotonic()
            if self.draining or now - self._looked_at >= LOOK_S:
                self._looked_at = now
                try:
                    self.look(now)
                except RedisError:
                    self._silent_since = None  # the broker is away, and nobody could take anything

    def look(self, now: float) -> None:
        """Refresh the card, or put it back if the broker lost it; `now` is of a monotonic clock."""
        if self.resting is not None:
            announce(self._redis, self.resting)
            self._seen.clear()
            return
        for lane in self._ids:
            self._refresh(lane)
        if self._seen:
            self._listen(now)

    def _refresh(self, lane: str) -> None:
        text = self._redis.get(keys.worker(lane))
        if isinstance(text, str):
            self._seen[lane] = WorkerCard.model_validate_json(text)
        if lane not in self._seen:
            return
        if self.draining:
            self._seen[lane] = self._seen[lane].model_copy(update={"state": WorkerState.DRAINING})
        if text is None or self.draining:
            announce(self._redis, self._seen[lane])
        else:  # not written again: the pool child may have news meanwhile
            self._redis.pexpire(keys.worker(lane), int(CARD_TTL_S * 1000))

    def _listen(self, now: float) -> None:
        """Note how long the worker has taken nothing that it could have taken, in any of its lanes."""
        pipe = self._redis.pipeline(transaction=False)
        for key in self._lists:
            pipe.llen(key)
        cards = self._seen.values()
        before, self._progress = self._progress, {card.last_progress for card in cards}
        idle = all(card.state is WorkerState.IDLE for card in cards) and self._progress == before
        silent = idle and any(pipe.execute())
        if not silent:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= DEAF_S:
            self._silent_since = None
            self.deaf.set()
