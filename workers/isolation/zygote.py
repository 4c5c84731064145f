"""The zygote, as its clients see it: ask for a judge or a candidate, wait, end it together with all it made.

The process itself is `workers.forkserver`.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from workers.isolation.wire import Channel

#: Longest wait for a killed process to go; a process that hangs in the driver stays longer and makes the device sick.
REAP_S = 30.0
#: Longest wait for torch and triton to be imported on a cold machine.
BOOT_S = 180.0


class Child(NamedTuple):
    """A process that the zygote forked."""

    pid: int
    pidfd: int

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process ends; return whether it did."""
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])

    def kill(self) -> None:
        """Kill the process; nothing if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class ZygoteConfig(NamedTuple):
    """What a zygote needs to know."""

    device: str
    """`cpu` or `cuda`; which CUDA device is decided by the environment mask."""
    first_uid: int | None
    """First user id for candidates; None runs them as the worker's own user."""
    memory_bytes: int
    """Host memory of one candidate."""


class Zygote:
    """A client's end of a zygote."""

    def __init__(self, channel: Channel, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Speak to the zygote over `channel`; `process` is its process, where it is ours."""
        self.channel = channel
        self.process = process

    @classmethod
    def start(cls, config: ZygoteConfig, environment: Mapping[str, str]) -> "Zygote":
        """Start a zygote as a child process with exactly `environment`, and return at once; see `wait_ready`."""
        channel, theirs = Channel.pair()
        arguments = [config.device, str(config.first_uid or 0), str(config.memory_bytes)]
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.forkserver", *arguments],
            stdin=theirs.fileno(),
            env=dict(environment),
            start_new_session=True,
        )
        theirs.close()
        return cls(channel, process)

    def wait_ready(self, timeout_s: float = BOOT_S) -> dict[str, Any]:
        """Wait until everything is imported; return versions and the measures of the sandbox."""
        return self.channel.receive(timeout_s)[0]

    def spawn(self, role: str, sock: socket.socket, output_fd: int) -> Child:
        """Fork a process of a role (`workers.forkserver`) that speaks over `sock` and writes to `output_fd`."""
        self.channel.send({"op": "spawn", "role": role}, [sock.fileno(), output_fd])
        reply, fds = self.channel.receive(REAP_S)
        sock.close()
        return Child(reply["pid"], fds[0])

    def end(self, child: Child) -> int | None:
        """End a child and all it made; return its wait status, or None when it cannot be killed."""
        self.channel.send({"op": "end", "pid": child.pid})
        reply, _ = self.channel.receive(2 * REAP_S)
        os.close(child.pidfd)
        status: int | None = reply["status"]
        return status

    def close(self) -> None:
        """Let the zygote end; it takes all its children with it."""
        self.channel.close()
        if self.process is not None:
            try:
                self.process.wait(2 * REAP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
