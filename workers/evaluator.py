"""Evaluator: one evaluation from request to facts, and what a worker's pool child keeps between tasks.

The pool child imports no torch. It asks a process for each request, listens to it, and ends it when the deadline is
over or nobody wants the answer. A judge, or the process of an audit, is kept for further requests while it says that
all is well with it. Before an answer counts, the device is looked at if anything gives reason to (`workers.health`).
"""

import os
import platform
import select
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

from drkernel_q import __version__
from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.errors import DeviceQuarantined, UnreliableClock
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure, Outcome
from drkernel_q.quarantine import Quarantine
from drkernel_q.queue.app import GRACE_S
from drkernel_q.request import Request
from drkernel_q.settings import Settings
from workers.device import Device, lanes_of
from workers.family import Family, Process
from workers.gate import Gate, OpenGate
from workers.health import Health
from workers.isolation import fault
from workers.isolation.wire import Channel, WireClosed, WireTimeout
from workers.monitor import Monitor

#: How often a running evaluation is asked for, seconds.
CANCEL_POLL_S = 1.0
#: What is waited for other lanes counts for nothing up to this, seconds: Celery has limits of its own.
MOST_WAIT_S = GRACE_S - 5.0
#: Past its deadline a judge has this long to say so itself.
DEADLINE_GRACE_S = 10.0


class Judged(NamedTuple):
    """What a judge found."""

    evaluation: Evaluation
    artefacts: str | None
    """Its raw measurements, packed (`drkernel_q.artefact`)."""


class Evaluator:
    """Judges one request at a time on one device."""

    def __init__(self, settings: Settings, device: Device, host: str, monitor: Monitor | None = None) -> None:
        """Start a zygote in the background; see `wait_ready`. What the driver says is heard by `monitor`."""
        self.device = device
        self.host = host
        lanes = lanes_of(device, settings.lanes)
        self.family = Family(settings, device, lanes)
        self.judged_by: int | None = None
        """The process that served the last request."""
        #: Where the gate is that this lane and others go through.
        self.door = (str(settings.lock_dir), device.identity) if lanes > 1 else None
        gate = Gate(settings.lock_dir, device.identity) if self.door else None
        self.gate = gate or OpenGate()
        #: Shared by all evaluations, so that one can wait until no other holds any of the device's memory.
        self.memory = Gate(settings.lock_dir, f"{device.identity}.memory") if self.door else OpenGate()
        worker = settings.worker_id or f"process {os.getpid()}"
        self.health = Health(device, self.family, settings.state_dir, monitor or Monitor(device), gate, worker)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of torch and triton, once everything is imported."""
        return self.family.versions

    @property
    def isolation(self) -> tuple[str, ...]:
        """Measures of the sandbox that candidates get."""
        return self.family.isolation

    @property
    def quarantine(self) -> Quarantine | None:
        """Why nothing is judged here any more."""
        return self.health.quarantine

    def wait_ready(self) -> None:
        """Wait until the zygote has imported everything and the device has proved itself.

        Raises:
            WireClosed, WireTimeout: it has not.
            UnreliableClock: the self-test of the stop-watch failed.
            DeviceQuarantined: the device failed its check.
        """
        self.health.wait_ready()
        if self.quarantine is not None:
            raise DeviceQuarantined(f"{self.device.name} is quarantined: {self.quarantine.reason}")

    def judge(self, request: EvaluationRequest, cancelled: Callable[[], bool]) -> Judged | Failure:
        """Judge one request; every end that is not a fact about the kernel is a `Failure`."""
        deadline_s = request.deadline_s + DEADLINE_GRACE_S
        heard: dict[str, Any] = {}
        with self.memory.shared():
            answer = self._ask("judge", request, deadline_s, cancelled, heard)
        facts = heard if isinstance(answer, Failure) else answer["evaluation"]
        if self.door is not None and facts.get("fault") == fault.DEVICE_MEMORY:
            # Whose memory it was that was lacking is not known before nobody else has any.
            with self.memory.alone():
                answer = self._ask("judge", request, deadline_s, cancelled, {})
        if isinstance(answer, Failure):
            return answer
        evaluation = Evaluation.model_validate(answer["evaluation"])
        if evaluation.outcome is not Outcome.CORRECT:
            evaluation = evaluation.model_copy(update={"fault": self.health.reported(evaluation.fault)})
        return Judged(evaluation, answer.get("artefacts"))

    def audit(self, request: AuditRequest, cancelled: Callable[[], bool]) -> Audit | Failure:
        """Audit one problem; that its reference dies or takes too long is a fact about it."""
        heard: dict[str, Any] = {}
        with self.memory.alone():
            answer = self._ask("audit", request, request.deadline_s, cancelled, heard)
        if not isinstance(answer, Failure):
            return Audit.model_validate(answer["audit"])
        if answer.kind not in ("problem", "deadline"):
            return answer
        if "audit" not in heard:
            return Audit(environment=self.environment(), unusable=answer.message)
        found = Audit.model_validate(heard["audit"])  # the reference itself has worked before
        return found.model_copy(update={"gaps": found.gaps | {heard["stage"]: answer.message}})

    def _ask(
        self,
        role: str,
        request: Request,
        deadline_s: float,
        cancelled: Callable[[], bool],
        heard: dict[str, Any],
    ) -> dict[str, Any] | Failure:
        """Have a process of this role serve a request; return its message with the facts, or why there are none.

        What it says of each stage as it begins is kept in `heard`.
        """
        try:
            self.wait_ready()
            try:
                answer = self._serve(role, request, deadline_s, cancelled, heard)
            except (WireClosed, WireTimeout) as error:
                self.family.close()
                answer = _broken(error)
            return self._proven(request, answer, heard)
        except (UnreliableClock, DeviceQuarantined) as error:
            return Failure(kind="infrastructure", message=str(error))
        except (WireClosed, WireTimeout) as error:  # it does not start, and that says nothing about the device
            self.family.close()
            return _broken(error)

    def _serve(
        self,
        role: str,
        request: Request,
        deadline_s: float,
        cancelled: Callable[[], bool],
        heard: dict[str, Any],
    ) -> dict[str, Any] | Failure:
        process = self.family.take(role)
        self.judged_by = process.child.pid
        again = False
        try:
            with self.gate.alone() if role == "audit" else nullcontext():  # a judge sees to that by itself
                answer = self._converse(process, request, deadline_s, cancelled, heard)
            again = isinstance(answer, dict) and answer.get("again", False)
        finally:
            if again:
                self.family.keep(process)
            else:
                words = process.last_words()
                status = self.family.end(process)
                if heard.pop("died", False) and status is not None:
                    heard["fault"] = fault.of_status(status, words)
        return answer

    def _proven(
        self, request: Request, answer: dict[str, Any] | Failure, heard: dict[str, Any]
    ) -> dict[str, Any] | Failure:
        """Return an answer if the device can be trusted with it, or else why it cannot."""
        failure = answer if isinstance(answer, Failure) else None
        facts = heard if failure is not None else answer.get("evaluation", {})  # type: ignore[union-attr]
        word: str | None = facts.get("fault")
        suspicion = self.health.suspicion(word, failure)
        if not self.versions:
            suspicion = suspicion or "a process could not be ended"
        if suspicion is None:
            return answer
        to_blame = self.health.is_to_blame(word)
        complaints = self.health.examine(suspicion, (f"The last request was {request.id}.",))
        if failure is not None and failure.kind == "cancelled":
            return failure
        if complaints or to_blame:
            reason = f"the device was not well afterwards: {complaints[0]}" if complaints else f"the fault is {word}"
            return Failure(kind="infrastructure", message=f"Nothing was decided, since {reason}.")
        return answer

    def _converse(
        self,
        process: Process,
        request: Request,
        deadline_s: float,
        cancelled: Callable[[], bool],
        heard: dict[str, Any],
    ) -> dict[str, Any] | Failure:
        try:
            job = {"request": request.model_dump(mode="json"), "gate": self.door}
            process.channel.send(job | {"environment": self.environment().model_dump(mode="json")})
            return _listen(process.channel, deadline_s, cancelled, heard)
        except WireClosed:
            heard["died"] = True
            # Nothing runs in an audit but the reference.
            kind: Literal["problem", "infrastructure"] = "problem" if process.role == "audit" else "infrastructure"
            return Failure(kind=kind, message=f"The process of the {process.role} died. {process.last_words()}".strip())

    def environment(self) -> Environment:
        """Say where and with what is judged here, once the zygote is ready."""
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
        self.family.close()


def _broken(error: Exception) -> Failure:
    reason = f"The process that forks judges failed ({type(error).__name__}: {error})."
    return Failure(kind="infrastructure", message=reason)


def _listen(
    channel: Channel, deadline_s: float, cancelled: Callable[[], bool], heard: dict[str, Any]
) -> dict[str, Any] | Failure:
    deadline, waited_s = time.monotonic() + deadline_s, 0.0
    while (left_s := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([channel], [], [], min(CANCEL_POLL_S, left_s))
        if not ready:
            if cancelled():
                return Failure(kind="cancelled", message="Nobody waits for this any more.")
            continue
        message, _ = channel.receive(DEADLINE_GRACE_S)
        if "failure" in message:
            heard["fault"] = message.get("fault")
            return Failure.model_validate(message["failure"])
        if "stage" not in message:
            return message
        heard.update(message)
        # That other lanes have the device is nobody's fault.
        longer_s = min(message.get("waited_s", 0.0), MOST_WAIT_S) - waited_s
        deadline, waited_s = deadline + longer_s, waited_s + longer_s
    return Failure(kind="deadline", message=f"No answer within {deadline_s:g} s.")
