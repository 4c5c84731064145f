"""How commands and the stack talk: JSON lines over a Unix socket, each with a token from a 0600 file."""

import json
import secrets
from pathlib import Path
from typing import Any

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
            Unavailable: somebody else has made it.
        """
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        status = self.folder.stat()
        if status.st_mode & 0o077 or self.folder.is_symlink():
            raise Unavailable(f"{self.folder} can be read by others; remove it, or set XDG_RUNTIME_DIR.")

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
