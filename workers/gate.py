"""Gate: who of a worker's lanes may use the device, held as long as it is needed; any death lets go of it.

Lanes of one device judge at the same time. What is timed has the device to itself; everything else that uses it shares
it. Whoever wants it alone comes before those who would share it, and those who do give way between two requests, so
that nobody waits for the end of another's checks.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from drkernel_q.lock import open_lock

#: Between two tries, seconds.
_POLL_S = 0.001


class OpenGate:
    """The gate of a device with one lane: there is nobody to wait for."""

    is_shared = False
    """Whether there are other lanes."""
    waited_s = 0.0
    """How long others have been waited for in all."""

    def shared(self) -> AbstractContextManager[None]:
        """Use the device beside others for the length of a block."""
        return nullcontext()

    def alone(self) -> AbstractContextManager[None]:
        """Have the device to oneself for the length of a block."""
        return nullcontext()

    def is_wanted(self) -> bool:
        """Whether one who shares the device should give way, since another wants it alone."""
        return False

    def give_way(self) -> None:
        """Leave the device that is shared to those who want it alone, and share it again after them."""


class Gate(OpenGate):
    """The gate of a device, as one process or thread sees it; it is held once at a time."""

    is_shared = True

    def __init__(self, folder: Path, identity: str, waiting: Callable[[], object] = lambda: None) -> None:
        """Go through the gate of a device; `waiting` is called again and again while others are waited for."""
        self.waited_s = 0.0
        self._folder = folder
        self._well = folder / f"{identity}.well"
        self._intent = f"{identity}.intent"
        """Held in common by those who want the device alone."""
        self._room = f"{identity}.room"
        """Held by those who have it."""
        self._waiting = waiting
        self._shared: IO[str] | None = None
        """The room, while it is shared."""

    def is_well(self, worker: str) -> bool:
        """Whether a lane of this worker has tried the device and found it well."""
        return self._well.is_file() and self._well.read_text() == worker

    def call_well(self, worker: str) -> None:
        """Spare the other lanes of this worker the trial."""
        with suppress(OSError):  # it is another user's; then each lane tries for itself
            self._well.write_text(worker)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the device beside others for the length of a block."""
        with open_lock(self._folder, self._room) as room:
            self._share(room)
            self._shared = room
            try:
                yield
            finally:
                self._shared = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the device to oneself for the length of a block."""
        with open_lock(self._folder, self._intent) as intent, open_lock(self._folder, self._room) as room:
            self._wait(intent, fcntl.LOCK_SH)
            self._wait(room, fcntl.LOCK_EX)
            yield

    def is_wanted(self) -> bool:
        """Whether one who shares the device should give way, since another wants it alone."""
        if self._shared is None:
            return False
        with open_lock(self._folder, self._intent) as intent:
            return not _try(intent, fcntl.LOCK_EX)

    def give_way(self) -> None:
        """Leave the device that is shared to those who want it alone, and share it again after them."""
        assert self._shared is not None
        fcntl.flock(self._shared, fcntl.LOCK_UN)
        self._share(self._shared)

    def _share(self, room: IO[str]) -> None:
        with open_lock(self._folder, self._intent) as intent:  # for a moment: nobody wants it alone
            self._wait(intent, fcntl.LOCK_EX)
            self._wait(room, fcntl.LOCK_SH)

    def _wait(self, file: IO[str], how: int) -> None:
        now = time.monotonic()
        while not _try(file, how):
            time.sleep(_POLL_S)
            before, now = now, time.monotonic()
            self.waited_s += now - before
            self._waiting()


def _try(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
