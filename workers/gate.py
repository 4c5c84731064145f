"""Gate: who of a worker's lanes may use the device, held as long as it is needed; any death lets go of it.

Lanes of one device judge at the same time. What is timed has the device to itself; everything else that uses it shares
it. Whoever wants it alone comes before those who would share it, so that lanes that were checked together are timed one
after the other.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
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
        with ExitStack() as stack:
            with self._held(self._intent, fcntl.LOCK_EX):  # for a moment: nobody wants it alone
                stack.enter_context(self._held(self._room, fcntl.LOCK_SH))
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the device to oneself for the length of a block."""
        with self._held(self._intent, fcntl.LOCK_SH), self._held(self._room, fcntl.LOCK_EX):
            yield

    @contextmanager
    def _held(self, name: str, how: int) -> Iterator[None]:
        with open_lock(self._folder, name) as file:
            now = time.monotonic()
            while not _try(file, how):
                time.sleep(_POLL_S)
                before, now = now, time.monotonic()
                self.waited_s += now - before
                self._waiting()
            yield


def _try(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
