"""Spares: candidate processes that are forked, confined and ready before there is a source for them."""

from workers.isolation.zygote import Zygote
from workers.judging.remote import RemoteCandidate

#: One for the checks and one for the timing of the next evaluation.
SPARES = 2


class Spares:
    """A few fresh candidate processes; each is given away once."""

    def __init__(self, zygote: Zygote, memory_bytes: int) -> None:
        """Fork none yet; each may hold `memory_bytes` of host memory."""
        self.zygote = zygote
        self.memory_bytes = memory_bytes
        self._ready: list[RemoteCandidate] = []

    def make(self) -> RemoteCandidate:
        """Fork one."""
        return RemoteCandidate(self.zygote, self.memory_bytes)

    def take(self) -> RemoteCandidate:
        """Return the process that has waited longest, or a new one."""
        return self._ready.pop(0) if self._ready else self.make()

    def fill(self) -> None:
        """Fork until there are enough; they get ready by themselves."""
        while len(self._ready) < SPARES:
            self._ready.append(self.make())
