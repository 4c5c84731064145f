"""The tasks `drkq.evaluate`, `drkq.profile`, `drkq.check` and `drkq.audit`: what a worker does at its desk. Thin."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject
from celery.utils.log import get_task_logger

from drkernel_q.audit import AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.errors import DeviceQuarantined, UnreliableClock
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure
from drkernel_q.queue.app import TASKS, queue_names
from drkernel_q.queue.connection import connect
from drkernel_q.queue.desk import PASS_ON_S, Answer, Desk, Reaper
from drkernel_q.queue.registry import WorkerCard, WorkerState, announce
from drkernel_q.rules import RULES_VERSION
from drkernel_q.settings import Settings
from workers.device import Device, device_lease, find_device, lane_id, lanes_of
from workers.evaluator import Evaluator, Judged
from workers.isolation.wire import WireClosed, WireTimeout

log = get_task_logger(__name__)
#: Tells of each evaluation, apart from what Celery tells of itself.
journal = logging.getLogger("drkq.journal")


class Worker:
    """The pool child of one worker: its connection, its card, its desk, its evaluator."""

    def __init__(self, app: Celery, settings: Settings, device: Device, worker_id: str) -> None:
        """Connect, and begin to get ready in the background; the card goes up when that is done."""
        self.host = socket.gethostname()
        self.id = worker_id
        self.device = device
        self.redis = connect(settings)
        self.desk = Desk(app, self.redis, worker_id, RULES_VERSION)
        self.evaluator = Evaluator(settings, device, self.host)
        self.lease = device_lease(device, settings.lock_dir)
        self.started_at = _now()
        self._leaving = False
        self._ready = threading.Lock()
        threading.Thread(target=self._get_ready, args=(connect(settings),), daemon=True).start()
        reaper = Reaper(app, connect(settings))
        threading.Thread(target=reaper.run, args=(worker_id, threading.Event()), daemon=True).start()

    def _get_ready(self, redis: Any) -> None:
        try:
            with self._ready:
                self.evaluator.wait_ready()
            announce(redis, self._card(WorkerState.IDLE, None))
        except (WireClosed, WireTimeout, UnreliableClock, DeviceQuarantined) as error:
            log.error("nothing can be judged here: %s", error)
            _leave()

    @property
    def lost(self) -> bool:
        """Whether nothing can be judged here any more: the device is quarantined, or no zygote starts."""
        return self.evaluator.quarantine is not None or self._leaving

    def environment(self) -> Environment | None:
        """Return where and with what is judged here, once the zygote is ready."""
        return self.evaluator.environment() if self.evaluator.versions else None

    def _card(self, state: WorkerState, request_id: str | None) -> WorkerCard:
        environment = self.environment()
        return WorkerCard(
            id=self.id,
            host=self.host,
            device=self.device.name,
            device_name=self.device.device_name,
            device_kind=self.device.device_kind,
            capabilities=self.device.capabilities,
            queues=queue_names(self.host, self.device.name, self.device.capabilities),
            pid=os.getpid(),
            versions=environment.conditions(RULES_VERSION).versions if environment else {},
            isolation=self.evaluator.isolation,
            state=state,
            request_id=request_id,
            started_at=self.started_at,
            last_progress=_now(),
        )

    def do(self, request: EvaluationRequest | AuditRequest, cancelled: Callable[[], bool]) -> Answer:
        """Judge a kernel, or audit a problem; the journal tells of beginning and end."""
        start = time.monotonic()
        told: dict[str, object] = {"evaluation": request.id, "worker": self.id}
        journal.info("%s begins", request.id, extra=told | {"action": "begin"})
        answer = self._do(request, cancelled)
        facts = answer.facts
        told |= {"outcome": facts.outcome.value} if isinstance(facts, Evaluation) else {}
        told |= {"failure": facts.kind} if isinstance(facts, Failure) else {}
        ended = {"action": "end", "pid": self.evaluator.judged_by, "duration_s": round(time.monotonic() - start, 3)}
        journal.info("%s ends", request.id, extra=told | ended)
        return answer

    def _do(self, request: EvaluationRequest | AuditRequest, cancelled: Callable[[], bool]) -> Answer:
        if isinstance(request, AuditRequest):
            answer = Answer(self.evaluator.audit(request, cancelled))
        else:
            found = self.evaluator.judge(request, cancelled)
            answer = Answer(found.evaluation, found.artefacts) if isinstance(found, Judged) else Answer(found)
        if isinstance(answer.facts, Failure):
            self._leaving = not self.evaluator.versions
            if self.lost:
                _leave()
        return answer

    @contextmanager
    def device_to_itself(self) -> Iterator[None]:
        """Keep whoever trains or generates on the same device from it for the length of a block.

        Raises:
            Reject: it is in use for that; the request goes back into its queue.
        """
        if not self.lease.take(alone=False):
            time.sleep(PASS_ON_S)
            raise Reject("the device is in use for training", requeue=True)
        try:
            yield
        finally:
            self.lease.let_go()

    @contextmanager
    def busy(self, request_id: str) -> Iterator[None]:
        """Show on the card that a request is being worked on, once everything is ready for it."""
        with self._ready:
            announce(self.redis, self._card(WorkerState.BUSY, request_id))
            try:
                yield
            finally:
                announce(self.redis, self._card(WorkerState.DRAINING if self.lost else WorkerState.IDLE, None))


def register(app: Celery, worker: Callable[[], Worker]) -> None:
    """Register the tasks; `worker` gives the pool child's own worker."""
    for name in TASKS:

        def run(task: Task, payload: dict[str, Any], name: str = name) -> None:
            mine = worker()
            with mine.device_to_itself():
                mine.desk.serve(name, payload, task.request.delivery_info["routing_key"], mine)

        app.task(name=name, bind=True)(run)


def make_worker(app: Celery, settings: Settings, number: int) -> Worker:
    """Make the worker of this process, a lane from 0 on, from what its supervisor left in the settings."""
    device = find_device(settings.device)
    name = settings.worker_id or f"{socket.gethostname()}-{device.name}"
    return Worker(app, settings, device, lane_id(name, number, lanes_of(device, settings.lanes)))


def _leave() -> None:
    """Let Celery take nothing new and end; the supervisor decides about another start."""
    os.kill(os.getppid(), signal.SIGTERM)


def _now() -> str:
    return datetime.now(UTC).isoformat()
