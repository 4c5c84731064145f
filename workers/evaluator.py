"""Evaluator: what a worker's pool child keeps between tasks, and one evaluation from request to facts.

The pool child imports no torch. It keeps a zygote, asks it for a judge for each request, listens to the judge, and ends
it when the deadline is over or nobody wants the answer. The process of an audit is kept for further audits while it
says that all is well with it.
"""

import os
import platform
import select
import tempfile
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from drkernel_q import __version__
from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.errors import UnreliableClock
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure
from drkernel_q.request import Request
from drkernel_q.settings import Settings
from workers.device import Device
from workers.wire import Channel, WireClosed, WireTimeout
from workers.zygote import Zygote, ZygoteConfig

#: How often a running evaluation is asked for, seconds.
CANCEL_POLL_S = 1.0
#: Past its deadline a judge has this long to say so itself.
DEADLINE_GRACE_S = 10.0
#: Longest time that the self-test of the stop-watch may take.
SELFTEST_S = 60.0
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
        self._kept: _Process | None = None

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
            UnreliableClock: the self-test of the stop-watch failed.
        """
        if self._zygote is None:
            self._zygote = self._start()
        if not self.versions:
            ready = self._zygote.wait_ready()
            self._test_stopwatch()
            self.versions = {"torch": ready["torch"], "triton": ready["triton"]}
            self.isolation = tuple(ready["isolation"])

    def _test_stopwatch(self) -> None:
        assert self._zygote is not None
        process = _Process(self._zygote, "selftest")
        try:
            faults = process.channel.receive(SELFTEST_S)[0]["faults"]
        finally:
            self._end(process)
        if faults:
            self.close()
            raise UnreliableClock(f"On {self.device.name} {'; '.join(faults)}. Nothing is timed there.")

    def judge(self, request: EvaluationRequest, cancelled: Callable[[], bool]) -> Judged | Failure:
        """Judge one request; every end that is not a fact about the kernel is a `Failure`."""
        answer = self._ask("judge", request, request.deadline_s + DEADLINE_GRACE_S, cancelled)
        if isinstance(answer, Failure):
            return answer
        return Judged(Evaluation.model_validate(answer["evaluation"]), answer.get("artefacts"))

    def audit(self, request: AuditRequest, cancelled: Callable[[], bool]) -> Audit | Failure:
        """Audit one problem; that its reference dies or takes too long is a fact about it."""
        heard: dict[str, Any] = {}
        answer = self._ask("audit", request, request.deadline_s, cancelled, heard)
        if not isinstance(answer, Failure):
            return Audit.model_validate(answer["audit"])
        if answer.kind not in ("problem", "deadline"):
            return answer
        if "audit" not in heard:
            return Audit(environment=self._facts(), unusable=answer.message)
        found = Audit.model_validate(heard["audit"])  # the reference itself has worked before
        return found.model_copy(update={"gaps": found.gaps | {heard["stage"]: answer.message}})

    def _ask(
        self,
        role: str,
        request: Request,
        deadline_s: float,
        cancelled: Callable[[], bool],
        heard: dict[str, Any] | None = None,
    ) -> dict[str, Any] | Failure:
        """Have a process of this role serve a request; return its message with the facts.

        What it says of each stage as it begins is kept in `heard`.
        """
        try:
            self.wait_ready()
            process = self._take(role)
            again = False
            try:
                answer = self._converse(process, request, deadline_s, cancelled, {} if heard is None else heard)
                again = isinstance(answer, dict) and answer.get("again", False)
            finally:
                if again:
                    self._kept = process
                else:
                    self._end(process)
        except UnreliableClock as error:
            return Failure(kind="infrastructure", message=str(error))
        except (WireClosed, WireTimeout) as error:
            self.close()
            reason = f"The process that forks judges failed ({type(error).__name__}: {error})."
            return Failure(kind="infrastructure", message=reason)
        return answer

    def _take(self, role: str) -> "_Process":
        """Return the process that served the last request, if it serves this role too, or else a fresh one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.role == role and kept.answers():
                return kept
            self._end(kept)
        assert self._zygote is not None
        return _Process(self._zygote, role)

    def _end(self, process: "_Process") -> None:
        process.close()
        if self._zygote is None or self._zygote.end(process.child) is None:
            self.close()

    def _converse(
        self,
        process: "_Process",
        request: Request,
        deadline_s: float,
        cancelled: Callable[[], bool],
        heard: dict[str, Any],
    ) -> dict[str, Any] | Failure:
        try:
            process.channel.send(
                {
                    "request": request.model_dump(mode="json"),
                    "environment": self._facts().model_dump(mode="json"),
                }
            )
            return _listen(process.channel, deadline_s, cancelled, heard)
        except WireClosed:
            # Nothing runs in an audit but the reference.
            kind: Literal["problem", "infrastructure"] = "problem" if process.role == "audit" else "infrastructure"
            return Failure(kind=kind, message=f"The process of the {process.role} died. {process.last_words()}".strip())

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
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
            self.versions = {}


class _Process:
    """A process that the zygote has forked, and our end of the conversation with it."""

    def __init__(self, zygote: Zygote, role: str) -> None:
        self.role = role
        self.channel, theirs = Channel.pair()
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see `close`
        self.child = zygote.spawn(role, theirs, self.log.fileno())

    def answers(self) -> bool:
        """Whether it is still there to be asked for more."""
        try:
            self.channel.send({})
            self.channel.receive(DEADLINE_GRACE_S)
        except (WireClosed, WireTimeout):
            return False
        return True

    def last_words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-_LOG_TAIL:].strip()

    def close(self) -> None:
        self.channel.close()
        self.log.close()


def _listen(
    channel: Channel, deadline_s: float, cancelled: Callable[[], bool], heard: dict[str, Any]
) -> dict[str, Any] | Failure:
    deadline = time.monotonic() + deadline_s
    while (left_s := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([channel], [], [], min(CANCEL_POLL_S, left_s))
        if not ready:
            if cancelled():
                return Failure(kind="cancelled", message="Nobody waits for this any more.")
            continue
        message, _ = channel.receive(DEADLINE_GRACE_S)
        if "failure" in message:
            return Failure.model_validate(message["failure"])
        if "stage" not in message:
            return message
        heard.update(message)
    return Failure(kind="deadline", message=f"No answer within {deadline_s:g} s.")


def _total_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
