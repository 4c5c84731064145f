"""The judge's handle of a candidate process: one request at a time, each with a deadline, every failure an outcome."""

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from drkernel_q.errors import InfrastructureFailure
from drkernel_q.evaluation import Outcome
from workers.isolation import fault, footprint, linux
from workers.isolation.wire import SEAL, Channel, WireAbuse, WireClosed, WireTimeout
from workers.isolation.zygote import Child, Zygote
from workers.judging.claim import CandidateFailed, claimed_text

#: Largest frame that is read from a candidate, bytes.
MAX_REPLY_BYTES = 4 * 2**20
#: What is kept of a candidate's output, bytes; the rest is read and dropped.
MAX_OUTPUT_BYTES = 4096
#: Most bytes that are read at a time of those that mark the progress of a request.
MOST_MARKS = 4096
#: What lets a process go on that waits for us.
GO = b"\0"
#: Longest time from fork to a ready harness, seconds.
START_S = 60.0
_SLICE_S = 0.1
#: A frame of the harness in a traceback, with the code below it, which is indented further.
_OUR_FRAMES = re.compile(
    r'^  File "[^"\n]*/workers/(?:harness/(?:outside|theirs)|exchange/stopwatch)\.py", line .*\n(?:    .*\n)*',
    re.MULTILINE,
)
_KINDS = {
    "memory": Outcome.OUT_OF_MEMORY,
    "compile": Outcome.COMPILE_ERROR,
    "runtime": Outcome.RUNTIME_ERROR,
    "tampered": Outcome.CRASHED,
}


class RemoteCandidate:
    """A confined candidate process, used as a context manager that always ends it."""

    def __init__(self, zygote: Zygote, memory_bytes: int) -> None:
        """Fork a candidate, and return while it gets ready; see `wait_ready`."""
        self.zygote = zygote
        self.memory_bytes = memory_bytes
        self.channel, theirs = Channel.pair()
        self.channel.max_fds = 0
        self.channel.max_frame_bytes = MAX_REPLY_BYTES
        reader, writer = os.pipe()
        self.child: Child | None = zygote.spawn("candidate", theirs, writer)
        os.close(writer)
        key = secrets.token_bytes(SEAL)
        with contextlib.suppress(WireClosed):  # it will be missed when it is waited for
            self.channel.send({"key": key.hex()})
        self.channel.expect_seals(key)
        self.output = bytearray()
        self._watch_from = 0.0
        self._drain = threading.Thread(target=self._read_output, args=(reader,), daemon=True)
        self._drain.start()
        self._isolation: tuple[str, ...] | None = None
        self._begun: list[float] = []
        self.fault: str | None = None
        """Its first fault (`workers.isolation.fault`)."""
        self.is_paused = False
        self._lost: tuple[Outcome, str, str | None] | None = None
        self._marked: tuple[int, list[float]] | None = None
        self._hold: tuple[socket.socket, socket.socket] | None = None

    def wait_ready(self) -> tuple[str, ...]:
        """Wait for the harness; return the measures of the sandbox that took hold.

        Raises:
            InfrastructureFailure: it did not come up; no candidate code has run.
        """
        if self._isolation is None:
            try:
                self._isolation = tuple(self._wait(START_S)["isolation"])
            except (CandidateFailed, KeyError) as error:
                self.close()
                text = self.output.decode(errors="replace")[-500:]
                raise InfrastructureFailure(f"No candidate process could be started: {error} {text}") from error
        return self._isolation

    def begin(self, operation: str, message: dict[str, Any], fds: Sequence[int] = (), *, deadline_s: float) -> None:
        """Send a request whose reply is looked at by `settle` or before the next `ask`, and tells nothing but success.

        Raises:
            CandidateFailed: it takes no requests any more.
        """
        self._insist()
        self._send(operation, message, fds, deadline_s)
        self._begun.append(deadline_s)

    def settle(self) -> None:
        """Wait for what was begun.

        Raises:
            CandidateFailed: one of the requests ended as in `ask`; the first of them is reported.
        """
        while self._begun:
            self._checked(self._wait(self._begun.pop(0)))

    def ask(
        self, operation: str, message: dict[str, Any], fds: Sequence[int] = (), *, deadline_s: float
    ) -> dict[str, Any]:
        """Send one request and return the reply.

        Raises:
            CandidateFailed: an exception, a crash, a deadline, too much memory, or nonsense instead of a reply; the
                same as the first time, if the process was lost before.
        """
        self._insist()
        self.settle()
        self._send(operation, message, fds, deadline_s)
        return self._checked(self._wait(deadline_s))

    @contextlib.contextmanager
    def marks(self) -> Iterator[tuple[int, list[float]]]:
        """Give a descriptor to send with a request, and the moments at which bytes came through it meanwhile, s."""
        ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._marked = ours, []
        try:
            yield theirs, self._marked[1]
        finally:
            self._marked = None
            os.close(ours)
            os.close(theirs)

    def hold(self) -> int:
        """Give a descriptor to send with a request that is to wait in the middle of its work; see `reach` and `go`."""
        self._hold = socket.socketpair()
        return self._hold[1].fileno()

    def reach(self) -> None:
        """Wait for what was begun, each for its own deadline, or until it waits for us.

        Raises:
            CandidateFailed: one of the requests ended as in `ask`.
        """
        while self._begun:
            ends_at = time.monotonic() + self._begun[0]
            if self._hold is not None and self._waits_for_us(self._hold[0], ends_at):
                return
            self._checked(self._wait(self._begun.pop(0), ends_at))

    def _waits_for_us(self, hold: socket.socket, ends_at: float) -> bool:
        """Wait for either: that the process waits (True), or that it has answered, is gone or late."""
        assert self.child is not None
        watched: list[int] = [hold.fileno(), self.channel.fileno(), self.child.pidfd]
        while time.monotonic() < ends_at:
            ready, _, _ = select.select(watched, [], [], _SLICE_S)
            if ready:
                return ready == watched[:1]
            self._watch_memory()
        return False

    def go(self) -> None:
        """Let it go on, and wait for what was begun.

        Raises:
            CandidateFailed: one of the requests ended as in `ask`.
        """
        if self._hold is not None:
            with contextlib.suppress(OSError):  # it has gone on by itself, or is gone
                self._hold[0].send(GO, socket.MSG_DONTWAIT)
            for end in self._hold:
                end.close()
            self._hold = None
        self.settle()

    def _insist(self) -> None:
        if self._lost is not None:
            raise CandidateFailed(*self._lost)
        self.wait_ready()

    @property
    def is_lost(self) -> bool:
        """Whether it lives no more, or has lost its context: everything that is asked of it fails as it did then."""
        return self._lost is not None

    def _send(self, operation: str, message: dict[str, Any], fds: Sequence[int], deadline_s: float) -> None:
        try:
            self.channel.send({"op": operation, **message}, fds, timeout_s=deadline_s)
        except WireTimeout:
            self._fail(Outcome.TIMEOUT, f"no answer within {deadline_s:.3g} s ({operation})", fault.DEADLINE)
        except WireClosed:
            self._fail_by_death()

    def _wait(self, deadline_s: float, ends_at: float | None = None) -> dict[str, Any]:
        """Wait for a reply until `deadline_s` are over, which may have begun before."""
        deadline = time.monotonic() + deadline_s if ends_at is None else ends_at
        assert self.child is not None
        watched = [self.channel.fileno(), self.child.pidfd, *([self._marked[0]] if self._marked else [])]
        while True:
            remaining = max(deadline - time.monotonic(), 0.0)
            ready, _, _ = select.select(watched, [], [], min(remaining, _SLICE_S))
            if self._marked and self._marked[0] in ready and remaining:
                now = time.perf_counter()
                self._marked[1].extend([now] * len(os.read(self._marked[0], MOST_MARKS)))
                continue
            if self.channel.fileno() in ready:
                return self._receive(max(remaining, 1.0))
            if ready:
                self._fail_by_death()
            if not remaining:
                self._fail(Outcome.TIMEOUT, f"no answer within {deadline_s:.3g} s", fault.DEADLINE)
            self._watch_memory()

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        try:
            return self.channel.receive(timeout_s)[0]
        except WireTimeout:
            self._fail(Outcome.TIMEOUT, "half an answer", fault.DEADLINE)
        except WireAbuse as abuse:
            text = f"the candidate wrote nonsense to the judge's channel: {abuse}"
            self._fail(Outcome.CRASHED, text, fault.NONSENSE)
        except WireClosed:
            self._fail_by_death()
        raise AssertionError("unreachable")

    def children(self) -> int:
        """Count the processes that the candidate has made and that still live, daemons included where it has a user."""
        return 0 if self.child is None else footprint.children(self.child.pid)

    def worked_s(self) -> float | None:
        """Return the time that the process was given on a core so far; None where others may work for it."""
        if self.child is None or self.children():
            return None
        try:
            return linux.cpu_time_s(self.child.pid)
        except OSError:
            return None

    def _watch_memory(self) -> None:
        assert self.child is not None
        # Pages shared between forks count in each of them, so a suspicion is checked by proportional shares.
        start = time.monotonic()
        if (
            start < self._watch_from
            or footprint.sum_over_family(self.child.pid, footprint.resident_bytes) < self.memory_bytes
        ):
            return
        if footprint.sum_over_family(self.child.pid, footprint.proportional_bytes) > self.memory_bytes:
            text = f"more than {self.memory_bytes / 2**30:.1f} GiB of host memory"
            self._fail(Outcome.OUT_OF_MEMORY, text, fault.HOST_MEMORY)
        self._watch_from = time.monotonic() + 10 * (time.monotonic() - start)  # shares of many forks take long to add

    def _fail(self, outcome: Outcome, error: str, word: str, *changes: str) -> None:
        self.close()
        self._lost = (outcome, error, word)
        self.fault = self.fault or word
        raise CandidateFailed(outcome, error, word, changes)

    def _fail_by_death(self) -> None:
        assert self.child is not None
        self.child.wait(1.0)
        status = self.close()
        if status is None:
            raise InfrastructureFailure("A candidate process cannot be killed; the device may be sick.")
        word = fault.of_status(status)
        if word == "signal:SIGKILL":
            text = "killed by SIGKILL, most likely for the memory it held"
            self._fail(Outcome.OUT_OF_MEMORY, text, word)
        if word in fault.ENDS:
            self._fail(Outcome.CRASHED, "the process was tampered with", word, fault.ENDS[word])
        kind, _, name = word.partition(":")
        how = f"exited with code {name} instead of answering"
        if kind == "signal":
            how = f"died of signal {name}" if name.isdigit() else f"died of {name}"
        self._fail(Outcome.CRASHED, f"the process {how}", word)

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return a reply that reports success, and raise `CandidateFailed` for any other."""
        if reply.get("ok") is True:
            return reply
        outcome = _KINDS.get(str(reply.get("kind")), Outcome.RUNTIME_ERROR)
        word = fault.claimed(reply.get("fault"))
        text = _without_ours(claimed_text(reply.get("error")))
        if word is not None and (named := fault.describe(word)):
            text = f"{text.rstrip()}\n{named}"
        self.fault = self.fault or word
        if outcome is Outcome.CRASHED or (word is not None and fault.loses_context(word)):
            self._lost = (outcome, text, word)
        changes = reply.get("state")
        raise CandidateFailed(outcome, text, word, map(claimed_text, changes) if isinstance(changes, list) else ())

    def pause(self) -> None:
        """Let it do nothing at all until `resume`; processes of its own that have left its group go on."""
        self.is_paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def _signal(self, number: int) -> None:
        if self.child is not None:
            with contextlib.suppress(OSError):  # it is gone, or another user's: then it goes on
                os.killpg(self.child.pid, number)

    def close(self) -> int | None:
        """End the process and all it made; return its wait status."""
        if self.child is None:
            return None
        child, self.child = self.child, None
        self.channel.close()
        for end in self._hold or ():
            end.close()
        self._hold = None
        status = self.zygote.end(child)
        self._drain.join(2.0)
        return status

    def __enter__(self) -> "RemoteCandidate":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def _read_output(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while part := pipe.read(2**16):
                if len(self.output) < MAX_OUTPUT_BYTES:
                    self.output += part[: MAX_OUTPUT_BYTES - len(self.output)]


def _without_ours(text: str) -> str:
    """Leave the harness's own frames out of a traceback: they are nothing to whoever wrote the kernel."""
    return _OUR_FRAMES.sub("", text)
