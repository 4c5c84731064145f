"""One worker of the stack: started, watched, started again, and given up when that does not help."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from drkernel_q.errors import DeviceBusy, DeviceQuarantined, DrkqError, NoWorker
from drkernel_q.local.process import tether
from drkernel_q.settings import Settings

#: A worker that ran this long before it ended has not failed at once.
STEADY_S = 60.0
#: Failures in a row after which it is given up.
MOST_FAILURES = 3
#: Wait before the first new start; it doubles with each failure.
RESTART_S = 0.5
#: A worker that is told to go while nobody waits for it has this long.
STOP_S = 5.0

#: Settings that a worker takes from the command that started the stack, flags included.
_PASSED_ON = (
    "sandbox",
    "lanes",
    "candidate_memory_bytes",
    "candidate_uid",
    "cache_dir",
    "state_dir",
    "lock_dir",
    "debug",
)


def worker_environment(settings: Settings, broker_url: str) -> dict[str, str]:
    """Environment of a worker: the broker, and nothing of the store."""
    passed_on = {f"DRKQ_{name.upper()}": str(getattr(settings, name)) for name in _PASSED_ON}
    environment = os.environ | passed_on | {"DRKQ_BROKER_URL": broker_url}
    for name in ("DRKQ_STORE_URL", "DRKQ_STORE_PASSWORD_FILE", "DRKQ_BROKER_PASSWORD_FILE"):
        environment.pop(name, None)
    return environment


class WorkerProcess:
    """One `drkq worker` and its log."""

    def __init__(self, device: str, log: Path, environment: dict[str, str], command: Sequence[str]) -> None:
        """Describe it; nothing runs yet."""
        self.device = device
        self.registered = False
        """Whether its card was seen."""
        self.error: DrkqError | None = None
        """Why it was given up."""
        self._log = log
        self._environment = environment
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._started_at = 0.0
        self._failures = 0
        self._restart_at: float | None = None

    async def start(self) -> None:
        """Start the process, with a log of its own, or start it again, with the log continued."""
        with self._log.open("ab" if self._failures else "wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--device",
                self.device,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
                # Its own children die with it in turn.
                preexec_fn=tether(signal.SIGKILL),
            )
        self._started_at = time.monotonic()
        self._restart_at = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def look(self) -> None:
        """After it ended: start it again in a while, or give it up if it never registered or keeps failing."""
        now = time.monotonic()
        if self._process is None:
            return  # it is being started for the first time
        if self._restart_at is None:
            steady = now - self._started_at >= STEADY_S
            self._failures = 1 if steady else self._failures + 1
            if not self.registered or self._failures >= MOST_FAILURES:
                self.error = self._reason()
                return
            self._restart_at = now + RESTART_S * 2.0**self._failures
        elif now >= self._restart_at:
            await self.start()

    def _reason(self) -> DrkqError:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        said = lines[-1].removeprefix("drkq: ") if lines else "it said nothing"
        if "is held by" in said:
            return DeviceBusy(said)
        if "is quarantined" in said:
            return DeviceQuarantined(said)
        return NoWorker(f"The worker on {self.device} ended: {said} (log: {self._log})")

    async def stop(self) -> None:
        """End it; nobody waits for what it is doing."""
        if self._process is None or not self.alive:
            return
        # The second signal gives the task back instead of finishing it.
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S / 2):
                    await self._process.wait()
                    return
