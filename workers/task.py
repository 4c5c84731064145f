"""The tasks `drkq.evaluate`, `drkq.profile`, `drkq.check` and `drkq.audit`: claim, judge, answer. Thin on purpose."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from celery.utils.log import get_task_logger
from pydantic import ValidationError

from drkernel_q import __version__
from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.errors import DeviceQuarantined, UnreliableClock
from drkernel_q.evaluation import EvaluationRequest, Failure, Reply, Stage
from drkernel_q.queue.app import AUDIT, CHECK, LEASE_S, PROFILE, TASKS, queue_names
from drkernel_q.queue.connection import connect
from drkernel_q.queue.ledger import MAX_ATTEMPTS, Claim, ClaimState, Ledger
from drkernel_q.queue.registry import WorkerCard, WorkerState, announce
from drkernel_q.request import Request
from drkernel_q.settings import Settings
from workers.device import Device, find_device
from workers.evaluator import Evaluator, Judged
from workers.wire import WireClosed, WireTimeout

log = get_task_logger(__name__)

Result = Judged | Audit | Failure

#: The stages of the tasks that do not take what the request asks for.
STAGES = {
    PROFILE: (Stage.CORRECTNESS, Stage.PROFILE),
    CHECK: (Stage.CORRECTNESS, Stage.INTEGRITY),
}


class Worker:
    """The pool child of one worker: its connection, its card, its evaluator."""

    def __init__(self, settings: Settings, device: Device, worker_id: str) -> None:
        """Connect, and begin to get ready in the background; the card goes up when that is done."""
        self.host = socket.gethostname()
        self.id = worker_id
        self.device = device
        self.redis = connect(settings)
        self.ledger = Ledger(self.redis)
        self.evaluator = Evaluator(settings, device, self.host)
        self.started_at = _now()
        self._ready = threading.Lock()
        threading.Thread(target=self._get_ready, args=(connect(settings),), daemon=True).start()

    def _get_ready(self, redis: Any) -> None:
        try:
            with self._ready:
                self.evaluator.wait_ready()
            announce(redis, self._card(WorkerState.IDLE, None))
        except (WireClosed, WireTimeout, UnreliableClock, DeviceQuarantined) as error:
            log.error("nothing can be judged here: %s", error)
            _leave()

    @property
    def _is_lost(self) -> bool:
        """Whether nothing can be judged here any more: the device is quarantined, or no zygote starts."""
        return self.evaluator.quarantine is not None or not self.evaluator.versions

    def _card(self, state: WorkerState, request_id: str | None) -> WorkerCard:
        return WorkerCard(
            id=self.id,
            host=self.host,
            device=self.device.name,
            device_name=self.device.device_name,
            device_kind=self.device.device_kind,
            capabilities=self.device.capabilities,
            queues=queue_names(self.host, self.device.name, self.device.capabilities),
            pid=os.getpid(),
            versions={"drkq": __version__, "driver": self.device.driver or "", **self.evaluator.versions},
            isolation=self.evaluator.isolation,
            state=state,
            request_id=request_id,
            started_at=self.started_at,
            last_progress=_now(),
        )

    def run(self, task: str, payload: dict[str, Any]) -> None:
        """Serve one delivery."""
        kind = AuditRequest if task == AUDIT else EvaluationRequest
        try:
            request = kind.model_validate(payload)
        except ValidationError as error:
            log.error("a request that is none: %s", error)
            raise Reject(str(error), requeue=False) from error
        if self.evaluator.quarantine is not None:
            raise Reject("the device is quarantined", requeue=True)
        claim = self.ledger.claim(request.id, self.id)
        if not claim.wants_reply:
            log.info("%s is %s", request.id, claim.state.value)
            return
        with self._hold(claim), self._ready, self._busy(request.id):
            result = self._result(claim, task, request)
        if isinstance(result, Failure) and self._is_lost:
            _leave()
            if result.kind == "infrastructure" and self.ledger.release(claim):
                raise Reject(result.message, requeue=True)  # for a worker whose device is well
        if not self._finish(claim, request, result):
            log.warning("%s was taken over by another worker", request.id)

    def _result(self, claim: Claim, task: str, request: EvaluationRequest | AuditRequest) -> Result:
        if claim.state is ClaimState.CANCELLED:
            return Failure(kind="cancelled", message="Cancelled before it began.")
        if claim.state is ClaimState.EXHAUSTED:
            text = f"Given up after {MAX_ATTEMPTS} attempts whose workers did not live to answer."
            return Failure(kind="infrastructure", message=text)
        cancelled = partial(self.ledger.is_cancelled, request.id)
        if isinstance(request, AuditRequest):
            return self.evaluator.audit(request, cancelled)
        if task in STAGES:
            protocol = request.protocol.model_copy(update={"stages": STAGES[task]})
            request = request.model_copy(update={"protocol": protocol})
        return self.evaluator.judge(request, cancelled)

    def _finish(self, claim: Claim, request: Request, result: Result) -> bool:
        reply = Reply(
            id=request.id,
            attempt=claim.attempt,
            worker=self.id,
            evaluation=result.evaluation if isinstance(result, Judged) else None,
            artefacts=result.artefacts if isinstance(result, Judged) else None,
            audit=result if isinstance(result, Audit) else None,
            failure=result if isinstance(result, Failure) else None,
            finished_at=_now(),
        )
        return self.ledger.finish(claim, request, reply)

    @contextmanager
    def _busy(self, request_id: str) -> Iterator[None]:
        announce(self.redis, self._card(WorkerState.BUSY, request_id))
        try:
            yield
        finally:
            announce(self.redis, self._card(WorkerState.DRAINING if self._is_lost else WorkerState.IDLE, None))

    @contextmanager
    def _hold(self, claim: Claim) -> Iterator[None]:
        """Extend the lease while the judge works."""
        done = threading.Event()

        def extend() -> None:
            while not done.wait(LEASE_S / 3):
                self.ledger.extend(claim)

        keeper = threading.Thread(target=extend, daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()


def register(app: Celery, worker: Callable[[], Worker]) -> None:
    """Register the tasks; `worker` gives the pool child's own worker."""
    for name in TASKS:

        def run(payload: dict[str, Any], name: str = name) -> None:
            worker().run(name, payload)

        app.task(name=name)(run)


def make_worker(settings: Settings) -> Worker:
    """Make the worker of this process from what its supervisor left in the settings."""
    device = find_device(settings.device)
    return Worker(settings, device, settings.worker_id or f"{socket.gethostname()}-{device.name}")


def _leave() -> None:
    """Let Celery take nothing new and end; the supervisor decides about another start."""
    os.kill(os.getppid(), signal.SIGTERM)


def _now() -> str:
    return datetime.now(UTC).isoformat()
