"""Framed messages between the processes of a worker: length, JSON, and file descriptors beside it.

A frame is 4 bytes of little-endian length and that many bytes of UTF-8 JSON (an object). Descriptors travel with the
first byte. The reader owns every limit: a hostile writer can end the conversation, and nothing else. In front of the
JSON may stand a seal, which only somebody with the reader's key can make, and only for the frame that is next.
"""

import array
import itertools
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

LENGTH = struct.Struct("<I")
INT = struct.Struct("@i")
#: Largest frame read by default, bytes; the judge reads less from a candidate.
MAX_FRAME_BYTES = 256 * 2**20
#: Most descriptors that one frame carries.
MAX_FDS = 8
#: Size of a seal, bytes.
SEAL = 32


class WireClosed(Exception):
    """The other end is gone."""


class WireTimeout(Exception):
    """No whole frame came in time."""


class WireAbuse(Exception):
    """What came is not a frame: too long, not JSON, or not an object."""


def sealer(key: bytes) -> Callable[[bytes], bytes]:
    """Return a function that makes the seals of frames, one after the other; it looks nothing up by name."""
    new, number, size = blake2b, itertools.count().__next__, SEAL

    def seal(body: bytes) -> bytes:
        return new(number().to_bytes(8, "little") + body, key=key, digest_size=size).digest()

    return seal


class Channel:
    """One end of a conversation over a stream socket."""

    def __init__(self, sock: socket.socket, *, max_frame_bytes: int = MAX_FRAME_BYTES, max_fds: int = MAX_FDS) -> None:
        """Take over `sock`; `max_fds=0` makes the kernel drop descriptors that the other end tries to push."""
        self.sock = sock
        self.sock.setblocking(False)
        self.max_frame_bytes = max_frame_bytes
        self.max_fds = max_fds
        self._seal: Callable[[bytes], bytes] | None = None

    def expect_seals(self, key: bytes) -> None:
        """From now on, read nothing but frames that were sealed with `key`."""
        self._seal = sealer(key)

    @classmethod
    def pair(cls) -> tuple["Channel", socket.socket]:
        """Make a connected pair: a channel, and the bare socket for another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def fileno(self) -> int:
        """Descriptor, for `select`."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close this end."""
        self.sock.close()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = (), *, timeout_s: float = 30.0) -> None:
        """Send one frame.

        Raises:
            WireClosed: the other end is gone.
            WireTimeout: the other end does not read.
        """
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        data = memoryview(LENGTH.pack(len(body)) + body)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        deadline = time.monotonic() + timeout_s
        while data:
            try:
                sent = self.sock.sendmsg([data], ancillary)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
                continue
            except OSError as error:
                raise WireClosed(str(error)) from error
            ancillary = []
            data = data[sent:]

    def receive(self, timeout_s: float | None) -> tuple[dict[str, Any], list[int]]:
        """Receive one frame and its descriptors, which the caller owns.

        Raises:
            WireClosed: the other end is gone.
            WireTimeout: no whole frame within `timeout_s` (None waits for ever).
            WireAbuse: not a frame, or over a limit.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        fds: list[int] = []
        try:
            (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline, fds))
            if length > self.max_frame_bytes:
                raise WireAbuse(f"a frame of {length} bytes; at most {self.max_frame_bytes} are read")
            body = self._read(length, deadline)
            if self._seal is not None:
                seal, body = body[:SEAL], body[SEAL:]
                if seal != self._seal(body):
                    raise WireAbuse("a frame without the harness's seal")
            return _decode(body), fds
        except BaseException:  # descriptors that nobody gets stay open for ever
            close_all(fds)
            raise

    def _read(self, size: int, deadline: float | None, fds: list[int] | None = None) -> bytes:
        """Read `size` bytes; descriptors that come with the first of them are added to `fds`."""
        data = bytearray()
        while len(data) < size:
            try:
                if fds is not None and not data and self.max_fds:
                    part, beside, _, _ = self.sock.recvmsg(size, socket.CMSG_SPACE(self.max_fds * INT.size))
                    for level, kind, data_beside in beside:
                        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                            whole = data_beside[: len(data_beside) // INT.size * INT.size]
                            fds += [fd for (fd,) in INT.iter_unpack(whole)]
                else:
                    part = self.sock.recv(min(size - len(data), 2**20))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise WireClosed(str(error)) from error
            if not part:
                raise WireClosed("end of stream")
            data += part
        return bytes(data)

    def _wait(self, events: int, deadline: float | None) -> None:
        poller = select.poll()
        poller.register(self.sock, events)
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise WireTimeout
        if not poller.poll(None if remaining is None else max(1.0, remaining * 1000)):
            raise WireTimeout


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError, MemoryError) as error:
        raise WireAbuse(f"not JSON ({type(error).__name__})") from error
    if not isinstance(message, dict):
        raise WireAbuse("not a JSON object")
    return message
