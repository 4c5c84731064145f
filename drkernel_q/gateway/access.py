"""Access: who may do what, by bearer tokens out of a file.

A line of the file is `NAME TOKEN [RIGHTS]`; the token is 16 characters or more, or `sha256:` and the hash of one in
hexadecimal digits. Rights are a list by comma of `read`, `submit` and `problems`; without them, `read,submit`. Empty
lines and those that start with `#` are passed over. A file that changes is read again.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from enum import StrEnum
from pathlib import Path

from drkernel_q.errors import BadSettings
from drkernel_q.value import Value

log = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
DEFAULT_RIGHTS = "read,submit"
#: How often the file is looked at for a change.
LOOK_S = 2.0
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Right(StrEnum):
    """What a client may do."""

    READ = "read"
    """Look at devices, runs and trajectories."""
    SUBMIT = "submit"
    """Have kernels judged against problems that the gateway knows by name."""
    PROBLEMS = "problems"
    """Bring references of its own: they run in the judge, as trusted code."""


class Client(Value):
    """Who sends a request."""

    name: str
    rights: frozenset[Right]


#: Whoever reaches a gateway without tokens, which listens on loopback alone.
LOCAL = Client(name="local", rights=frozenset(Right))


class Tokens:
    """The clients by their tokens."""

    def __init__(self, clients: dict[bytes, Client], path: Path | None = None) -> None:
        """Take clients by the SHA-256 of their tokens; `path` is read again when it changes."""
        # Looked up by a digest under a key that nobody outside knows: no time that it takes tells of a token.
        self._key = secrets.token_bytes(32)
        self._path = path
        self._changed_at = _changed_at(path)
        self._look_at = time.monotonic() + LOOK_S
        self._take(clients)

    @classmethod
    def read(cls, path: Path) -> "Tokens":
        """Read a file of tokens.

        Raises:
            BadSettings: it cannot be read, or a line is wrong; the message names the line and quotes nothing.
        """
        return cls(_parse(path), path)

    @classmethod
    def single(cls, token: str) -> "Tokens":
        """Make the one token that a setting names; it may do everything.

        Raises:
            BadSettings: it is too short.
        """
        return cls({_hash(token, "The setting `gateway_token`"): LOCAL.model_copy(update={"name": "owner"})})

    def client(self, authorization: str) -> Client | None:
        """Find who sends this `Authorization` header: a bearer token, or one as the password of basic access."""
        self._look()
        token = _token(authorization)
        if token is None:
            return None
        return self._clients.get(self._digest(hashlib.sha256(token).digest()))

    def _look(self) -> None:
        """Read the file again if it changed; one that is wrong now changes nothing."""
        if self._path is None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        changed_at = _changed_at(self._path)
        if changed_at == self._changed_at:
            return
        self._changed_at = changed_at
        try:
            self._take(_parse(self._path))
        except BadSettings as error:
            log.warning("%s The tokens of before stay.", error)

    def _take(self, clients: dict[bytes, Client]) -> None:
        self._clients = {self._digest(hashed): client for hashed, client in clients.items()}

    def _digest(self, hashed: bytes) -> bytes:
        return hmac.digest(self._key, hashed, "sha256")


def check_host(host: str, tokens: Tokens | None) -> None:
    """Refuse to listen beyond this machine without tokens.

    Raises:
        BadSettings: it would.
    """
    if tokens is None and not _is_loopback(host):
        raise BadSettings(
            f"Whoever reaches {host} could run code on the workers: name a file of tokens by --tokens, or listen on "
            "127.0.0.1."
        )


def _parse(path: Path) -> dict[bytes, Client]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"The tokens in {path} cannot be read: {error}.") from error
    clients: dict[bytes, Client] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            hashed, client = _client(line.split(), f"Line {number} of {path}")
            if hashed in clients or client.name in {each.name for each in clients.values()}:
                raise BadSettings(f"Line {number} of {path} repeats a name or a token.")
            clients[hashed] = client
    if not clients:
        raise BadSettings(f"There is no token in {path}; a line is NAME TOKEN [RIGHTS].")
    return clients


def _client(words: list[str], where: str) -> tuple[bytes, Client]:
    match words:
        case [name, token] if _NAME.fullmatch(name):
            rights = DEFAULT_RIGHTS
        case [name, token, rights] if _NAME.fullmatch(name):
            pass
        case _:
            raise BadSettings(f"{where} is not NAME TOKEN [RIGHTS], with a name of letters, digits, dots and dashes.")
    try:
        allowed = frozenset(map(Right, rights.split(",")))
    except ValueError:
        raise BadSettings(f"{where} has other rights than read, submit and problems.") from None
    return _hash(token, where), Client(name=name, rights=allowed)


def _hash(token: str, where: str) -> bytes:
    if (hashed := _HASHED.fullmatch(token)) is not None:
        return bytes.fromhex(hashed[1])
    if len(token) < MIN_TOKEN_CHARS:
        raise BadSettings(f"{where} has a token of less than {MIN_TOKEN_CHARS} characters.")
    return hashlib.sha256(token.encode()).digest()


def _token(authorization: str) -> bytes | None:
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip().encode("latin-1", "replace")
        case "basic":
            try:
                return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return None
        case _:
            return None


def _changed_at(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
