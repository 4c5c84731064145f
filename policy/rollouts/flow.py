"""Flow: how much is under way at once, so that neither the sampler's memory nor the judges' queue overflows."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class Flow:
    """Lets completions begin while there is room for their tokens, and while judges are not too far behind.

    Whoever belongs to an earlier group goes first, so that groups are completed one after the other. What is larger
    than all the room there is begins when nothing else is under way.
    """

    def __init__(self, tokens: int, evaluations: int) -> None:
        """Allow this many tokens in flight, prompts and completions, and this many kernels that wait for facts."""
        self._tokens = tokens
        self._evaluations = evaluations
        self.tokens_in_flight = 0
        """Tokens of the completions that are being written, at their longest, and of their prompts."""
        self.evaluations_in_flight = 0
        """Kernels that are being judged or wait for it."""
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def sampling(self, tokens: int, rank: int = 0) -> AsyncIterator[None]:
        """Hold room for tokens for the length of a block; of those who wait, the lowest rank goes first."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._order), tokens, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(tokens)
            turn.cancel()
            raise
        try:
            yield
        finally:
            self._leave(tokens)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Count a kernel as being judged for the length of a block; nobody waits here, since the work is done."""
        self.evaluations_in_flight += 1
        try:
            yield
        finally:
            self.evaluations_in_flight -= 1
            self._admit()

    def _leave(self, tokens: int) -> None:
        self.tokens_in_flight -= tokens
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            _, _, tokens, turn = self._waiting[0]
            if not turn.cancelled():
                fits = self.tokens_in_flight + tokens <= self._tokens or self.tokens_in_flight == 0
                if not fits or self.evaluations_in_flight >= self._evaluations:
                    return
                self.tokens_in_flight += tokens
                turn.set_result(None)
            heapq.heappop(self._waiting)
