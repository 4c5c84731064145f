"""The rate: how many requests of one client are let through, by a bucket of tokens for each."""

import time
from collections import OrderedDict
from collections.abc import Callable

#: Clients whose buckets are remembered; a bucket that was forgotten is full.
MOST_BUCKETS = 10_000


class Rate:
    """Buckets that fill at `per_s` up to `burst`."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets."""
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By client, what was left and when; least recently used first."""

    def wait_s(self, client: str, cost: float = 1.0) -> float:
        """Take `cost` out of the client's bucket and return 0; or, if it has less, return how long to wait."""
        now = self._clock()
        left, then = self._buckets.pop(client, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._per_s)
        cost = min(cost, self._burst)
        wait_s = max(0.0, (cost - left) / self._per_s)
        self._buckets[client] = (left - cost if wait_s == 0.0 else left, now)
        if len(self._buckets) > MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return wait_s
