"""Evaluator: what a worker's pool child keeps between tasks, and one evaluation from request to facts.

The pool child imports no torch. It keeps a zygote, asks it for a judge for each request, listens to the judge, and ends
it when the deadline is over or nobody wants the answer.
"""

import os
import platform
import select
import tempfile
import time
from collections.abc import Callable
from typing import IO, NamedTuple

from drkernel_q import __version__
from drkernel_q.environment import Environment
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure
from drkernel_q.settings import Settings
from workers.device import Device
from workers.wire import Channel, WireClosed, WireTimeout
from workers.zygote import Child, Zygote, ZygoteConfig

#: How often a running evaluation is asked for, seconds.
CANCEL_POLL_S = 1.0
#: Past its deadline a judge has this long to say so itself.
DEADLINE_GRACE_S = 10.0
_LOG_TAIL = 2000
_THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


class Judged(NamedTuple):
    """What a judge found."""

    evaluation: Evaluation
    artefacts: str | None
    """Its raw measurements, packed (`drkernel_q.artefact`)."""


class Evaluator:
    """Judges one request at a time on one device."""

    def __init__(self, settings: Settings, device: Device, host: str) -> None:
        """Start a zygote in the background; see `wait_ready`."""
        self.settings = settings
        self.device = device
        self.host = host
        self.versions: dict[str, str] = {}
        self.isolation: tuple[str, ...] = ()
        self._zygote: Zygote | None = self._start()

    def _start(self) -> Zygote:
        memory_bytes = min(self.settings.candidate_memory_bytes, _total_memory_bytes() // 2)
        first_uid = self.settings.candidate_uid if os.geteuid() == 0 else None
        self.memory_bytes = memory_bytes
        return Zygote.start(ZygoteConfig(self.device.type, first_uid, memory_bytes), self._environment())

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
        return environment | _THREADS | self.device.mask | {"PYTHONUNBUFFERED": "1"}

    def wait_ready(self) -> None:
        """Wait until the zygote has imported everything.

        Raises:
            WireClosed, WireTimeout: it has not.
        """
        if self._zygote is None:
            self._zygote = self._start()
        if not self.versions:
            ready = self._zygote.wait_ready()
            self.versions = {"torch": ready["torch"], "triton": ready["triton"]}
            self.isolation = tuple(ready["isolation"])

    def judge(self, request: EvaluationRequest, cancelled: Callable[[], bool]) -> Judged | Failure:
        """Judge one request; every end that is not a fact about the kernel is a `Failure`."""
        try:
            self.wait_ready()
            with tempfile.TemporaryFile("w+", errors="replace") as log:
                return self._judge(request, cancelled, log)
        except (WireClosed, WireTimeout) as error:
            self.close()
            reason = f"The process that forks judges failed ({type(error).__name__}: {error})."
            return Failure(kind="infrastructure", message=reason)

    def _judge(self, request: EvaluationRequest, cancelled: Callable[[], bool], log: IO[str]) -> Judged | Failure:
        assert self._zygote is not None
        channel, theirs = Channel.pair()
        child = self._zygote.spawn("judge", theirs, log.fileno())
        try:
            channel.send(
                {
                    "request": request.model_dump(mode="json"),
                    "environment": self._facts().model_dump(mode="json"),
                    "memory_bytes": self.memory_bytes,
                }
            )
            return _listen(channel, child, request.deadline_s + DEADLINE_GRACE_S, cancelled)
        except WireClosed:
            log.seek(0)
            tail = log.read()[-_LOG_TAIL:].strip()
            return Failure(kind="infrastructure", message=f"The judge's process died. {tail}")
        finally:
            channel.close()
            if self._zygote.end(child) is None:
                self.close()

    def _facts(self) -> Environment:
        return Environment(
            device=self.device.name,
            device_name=self.device.device_name,
            device_kind=self.device.device_kind,
            host=self.host,
            python=platform.python_version(),
            torch=self.versions["torch"],
            triton=self.versions["triton"],
            driver=self.device.driver,
            drkq=__version__,
        )

    def close(self) -> None:
        """Let the zygote go, with all that it forked; a further request starts another."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
            self.versions = {}


def _listen(channel: Channel, child: Child, deadline_s: float, cancelled: Callable[[], bool]) -> Judged | Failure:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        ready, _, _ = select.select([channel], [], [], CANCEL_POLL_S)
        if not ready:
            if cancelled():
                return Failure(kind="cancelled", message="Nobody waits for this evaluation any more.")
            continue
        message, _ = channel.receive(DEADLINE_GRACE_S)
        if "evaluation" in message:
            return Judged(Evaluation.model_validate(message["evaluation"]), message.get("artefacts"))
        if "failure" in message:
            return Failure.model_validate(message["failure"])
    return Failure(kind="deadline", message=f"No verdict within {deadline_s:g} s.")


def _total_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
