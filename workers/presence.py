"""Presence: what a supervisor shows of its worker, whatever the worker itself is at: alive, draining, out of service.

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
    """The card of one worker."""

    def __init__(self, redis: Redis, worker_id: str, lists: Iterable[str]) -> None:
        """Show nothing yet: the pool child puts the card up when it is ready. `lists` is what the worker takes from."""
        self._redis = redis
        self._id = worker_id
        self._lists = [keys.PREFIX + name for name in lists]
        self._seen: WorkerCard | None = None
        self._looked_at = float("-inf")
        self._progress = ""
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
            self._seen = None
            return
        text = self._redis.get(keys.worker(self._id))
        if isinstance(text, str):
            self._seen = WorkerCard.model_validate_json(text)
        if self._seen is None:
            return
        if self.draining:
            self._seen = self._seen.model_copy(update={"state": WorkerState.DRAINING})
        if text is None or self.draining:
            announce(self._redis, self._seen)
        else:  # not written again: the pool child may have news meanwhile
            self._redis.pexpire(keys.worker(self._id), int(CARD_TTL_S * 1000))
        self._listen(self._seen, now)

    def _listen(self, card: WorkerCard, now: float) -> None:
        """Note how long the worker has taken nothing that it could have taken."""
        pipe = self._redis.pipeline(transaction=False)
        for key in self._lists:
            pipe.llen(key)
        silent = card.state is WorkerState.IDLE and card.last_progress == self._progress and any(pipe.execute())
        self._progress = card.last_progress
        if not silent:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= DEAF_S:
            self._silent_since = None
            self.deaf.set()
