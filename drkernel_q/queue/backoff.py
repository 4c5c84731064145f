"""Waiting between attempts: exponential, with jitter, so that many clients do not come back at once."""

import asyncio
import random
import time
from dataclasses import dataclass

FIRST_S = 0.05
LONGEST_S = 2.0


@dataclass(slots=True)
class Backoff:
    """The waits of one series of failures."""

    attempts: int = 0
    failing_since: float | None = None

    async def sleep(self) -> None:
        """Wait for the next attempt: between half and all of a span that doubles up to `LONGEST_S`."""
        if self.failing_since is None:
            self.failing_since = time.monotonic()
        span_s = min(LONGEST_S, FIRST_S * 2.0**self.attempts)
        self.attempts += 1
        await asyncio.sleep(span_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter needs no secrecy

    @property
    def failing_s(self) -> float:
        """Seconds since the first failure of the series; 0 when all is well."""
        return 0.0 if self.failing_since is None else time.monotonic() - self.failing_since

    def reset(self) -> None:
        """Note a success."""
        self.attempts = 0
        self.failing_since = None
