"""How commands and the stack talk: JSON lines over a Unix socket, each with a token from a 0600 file."""

import fcntl
import json
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from drkernel_q import errors
from drkernel_q.errors import DrkqError, Unavailable
from drkernel_q.settings import Settings


class Place:
    """Where the stack of one store keeps its socket, lock, token and logs."""

    def __init__(self, settings: Settings) -> None:
        """Name the files; the folder is made by `prepare`."""
        self.folder = settings.runtime_dir
        self.socket = self.folder / "control.sock"
        self.lock = self.folder / "stack.lock"
        self.token_file = self.folder / "token"
        self.log = self.folder / "stack.log"

    def prepare(self) -> None:
        """Make the folder, for this user alone.

        Raises:
            Unavailable: somebody else has made it, or can read it.
        """
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise Unavailable(f"{folder} belongs to somebody else; remove it, or set XDG_RUNTIME_DIR.")
        if self.folder.stat().st_mode & 0o077:
            raise Unavailable(f"{self.folder} can be read by others; remove it, or set XDG_RUNTIME_DIR.")

    def tidy(self) -> None:
        """Remove what only a running stack has."""
        for path in (self.socket, self.token_file, self.folder / "broker.sock"):
            path.unlink(missing_ok=True)

    def new_token(self) -> str:
        """Write a new token and return it."""
        token = secrets.token_hex(16)
        self.token_file.unlink(missing_ok=True)
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(token)
        return token

    def worker_log(self, device: str) -> Path:
        """Name the log of a worker."""
        return self.folder / f"worker-{device.replace(':', '-')}.log"


def hold_lock(path: Path) -> IO[str] | None:
    """Take the lock that a stack holds all its life; None when one has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def order(settings: Settings, command: Sequence[str]) -> dict[str, Any]:
    """Write down what a stack is started with; holds the store's password, so it goes by standard input."""
    document = settings.model_dump(mode="json", exclude={"broker_url", "store_url"})
    document |= {"broker_url": None, "store_url": settings.store}
    return {"settings": document, "command": list(command)}


def load_order(document: dict[str, Any]) -> tuple[Settings, Sequence[str]]:
    """Read an order; every setting is named in it, so neither environment nor files are asked."""
    return Settings(**document["settings"]), document["command"] or (sys.executable, "-m", "workers")


def encode(message: dict[str, Any]) -> bytes:
    """Write one line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read one line; an empty one is the end."""
    message: dict[str, Any] = json.loads(line) if line.strip() else {}
    return message


def encode_error(error: DrkqError) -> dict[str, Any]:
    """Describe an error, so that the other side can raise it."""
    return {"error": type(error).__name__, "message": str(error)}


def raise_error(message: dict[str, Any]) -> None:
    """Raise the error that a message describes, if it does."""
    if "error" in message:
        kind = getattr(errors, message["error"], Unavailable)
        raise kind(message["message"])
