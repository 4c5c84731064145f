"""Lock: files that say who has a device of this machine, held as long as they are open; any death lets go of them.

A device has one worker, which locks it for its life (`workers.device.lock_device`). Beside that lock there is a lease
on keeping the device busy: evaluations share it, and whoever generates or trains on the same device has it alone, so
that nothing is timed while something else computes.
"""

import fcntl
import os
import socket
from pathlib import Path
from typing import IO, Self


def open_lock(folder: Path, name: str) -> IO[str]:
    """Open the lock file of this name in a folder that every user of the machine can write to."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o1777)
    path = folder / name
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        # Another user made it. A lock needs no right to write, and in a shared folder O_CREAT is refused for its own.
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    if os.fstat(fd).st_uid == os.getuid():
        os.fchmod(fd, 0o644)  # whatever the umask says
    return os.fdopen(fd, "r+")


def cpu_identity(name: str = "cpu") -> str:
    """What a CPU is locked by; its cores are shared by `cpu`, `cpu:1` and so on, which are locked apart."""
    return f"{socket.gethostname()}-{name.replace(':', '-')}"


class Lease:
    """The right to keep a device busy: many may share it to judge, or one has it alone to generate or to train."""

    def __init__(self, folder: Path, identity: str) -> None:
        """Name a device by what it is locked by; all workers on the CPU have one lease in common."""
        self._file = open_lock(folder, f"{identity}.lease")

    def take(self, *, alone: bool) -> bool:
        """Take the lease, or change what is held; False, and then nothing is held, when others have it."""
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self.let_go()
            return False
        return True

    def let_go(self) -> None:
        """Let others have it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go for good."""
        self._file.close()

    def __enter__(self) -> Self:
        """Use the lease for the length of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
