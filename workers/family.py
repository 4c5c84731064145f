"""Family: the zygote of one device and the processes of trusted code that it forks, started, kept and replaced."""

import os
import tempfile
from typing import Any

from drkernel_q.settings import Settings
from workers.device import Device
from workers.isolation.wire import Channel, WireClosed, WireTimeout
from workers.isolation.zygote import Zygote, ZygoteConfig

#: Longest time for a process to say that it is still there.
ANSWER_S = 10.0
_LOG_TAIL = 2000
_THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


class Process:
    """A process of trusted code, and our end of the conversation with it."""

    def __init__(self, zygote: Zygote, role: str) -> None:
        """Fork it."""
        self.role = role
        self.channel, theirs = Channel.pair()
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see `close`
        self.child = zygote.spawn(role, theirs, self.log.fileno())

    def answers(self) -> bool:
        """Whether it is still there to be asked for more, and its device with it."""
        try:
            self.channel.send({})
            self.channel.receive(ANSWER_S)
        except (WireClosed, WireTimeout):
            return False
        return True

    def last_words(self) -> str:
        """Return the end of what it has written."""
        self.log.seek(0)
        return self.log.read()[-_LOG_TAIL:].strip()

    def close(self) -> None:
        """Close our end."""
        self.channel.close()
        self.log.close()


class Family:
    """The zygote, and at most one process that is kept for further requests."""

    def __init__(self, settings: Settings, device: Device, lanes: int = 1) -> None:
        """Start a zygote in the background, one of as many as there are `lanes`; see `wait_ready`."""
        self.settings = settings
        self.device = device
        self.memory_bytes = min(settings.candidate_memory_bytes, _total_memory_bytes() // (2 * lanes))
        self.versions: dict[str, str] = {}
        """Of torch and triton, once the zygote is ready."""
        self.isolation: tuple[str, ...] = ()
        """Measures of the sandbox that candidates get."""
        self._kept: Process | None = None
        self._zygote: Zygote | None = self._start()

    def _start(self) -> Zygote:
        first_uid = self.settings.candidate_uid if os.geteuid() == 0 else None
        return Zygote.start(ZygoteConfig(self.device.type, first_uid, self.memory_bytes), self._environment())

    def _environment(self) -> dict[str, str]:
        """Return the environment of trusted code on the device: no credentials, one thread a library.

        Nothing waits in buffers: a candidate is killed, and what it printed is kept.
        """
        cache = self.settings.cache_dir / "judge"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        keep = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "PYTHONPATH", "VIRTUAL_ENV")
        environment = {name: os.environ[name] for name in keep if name in os.environ}
        caches = {"TRITON_CACHE_DIR": cache / "triton", "TORCHINDUCTOR_CACHE_DIR": cache / "inductor", "HOME": cache}
        environment |= {name: str(path) for name, path in caches.items()}
        return environment | _THREADS | self.device.environment | {"PYTHONUNBUFFERED": "1"}

    def wait_ready(self) -> None:
        """Wait until the zygote has imported everything; start one if there is none.

        Raises:
            WireClosed, WireTimeout: it has not.
        """
        if self._zygote is None:
            self._zygote = self._start()
        if not self.versions:
            ready = self._zygote.wait_ready()
            self.versions = {"torch": ready["torch"], "triton": ready["triton"]}
            self.isolation = tuple(ready["isolation"])

    def take(self, role: str) -> Process:
        """Return the process that was kept, if it serves this role and is well, or else a fresh one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.role == role and kept.answers():
                return kept
            self.end(kept)
        assert self._zygote is not None
        return Process(self._zygote, role)

    def keep(self, process: Process) -> None:
        """Keep a process for the next request."""
        self._kept = process

    def drop(self) -> None:
        """End the process that is kept, with the candidates that it has ready."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self.end(kept)

    def end(self, process: Process) -> int | None:
        """End a process; return its wait status. One that cannot be killed takes the family with it, and gives None."""
        process.close()
        status = None if self._zygote is None else self._zygote.end(process.child)
        if status is None:
            self.close()
        return status

    def ask(self, role: str, timeout_s: float) -> dict[str, Any]:
        """Fork a process that says one thing, and return that.

        Raises:
            WireClosed, WireTimeout: it died, or said nothing in time; the text holds its last words.
        """
        assert self._zygote is not None
        process = Process(self._zygote, role)
        try:
            return process.channel.receive(timeout_s)[0]
        except (WireClosed, WireTimeout) as error:
            raise type(error)(f"the {role} gave no answer {process.last_words()}".strip()) from error
        finally:
            self.end(process)

    def close(self) -> None:
        """Let the zygote go, with all that it forked; `wait_ready` starts another."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
            self.versions = {}


def _total_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
