"""drkq with a worker that does nothing, but for all that the queue does around it: claim, lease, reply, results."""

import asyncio
import itertools
import socket
import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import Task
from celery.signals import worker_process_init

from benchmarks.peers.measure import measure_all
from drkernel_q.audit import AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Integrity, Outcome
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.queue.app import EVALUATE, celery_app, queue_names
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.connection import connect
from drkernel_q.queue.desk import Answer, Desk
from drkernel_q.queue.registry import WorkerCard, announce
from drkernel_q.queue.turns import list_names

QUEUES = queue_names(socket.gethostname(), "cpu")
ENVIRONMENT = Environment(
    device="cpu", device_name="no-op", device_kind="cpu", host="here", python="3", torch="0", triton="0", drkq="0"
)
NOTHING = Evaluation(outcome=Outcome.CORRECT, integrity=Integrity.CLEAN, environment=ENVIRONMENT)


class Noop:
    """Answers at once."""

    lost = False

    def environment(self) -> Environment:
        """Return the same as ever."""
        return ENVIRONMENT

    def busy(self, request_id: str) -> AbstractContextManager[object]:
        """Show nothing."""
        return nullcontext()

    def do(self, request: EvaluationRequest | AuditRequest, cancelled: Callable[[], bool]) -> Answer:
        """Do nothing."""
        return Answer(NOTHING)


def serve(url: str) -> None:
    """Run the worker."""
    app = celery_app(url)
    desks: list[Desk] = []
    worker_process_init.connect(lambda **_: desks.append(Desk(app, connect(url), "noop", "0")), weak=False)

    @app.task(name=EVALUATE, bind=True)  # type: ignore[untyped-decorator]  # Celery has no types
    def evaluate(task: Task, payload: dict[str, Any]) -> None:
        desks[0].serve(EVALUATE, payload, task.request.delivery_info["routing_key"], Noop())

    card = WorkerCard(
        id="noop",
        host=socket.gethostname(),
        device="cpu",
        device_name="no-op",
        device_kind="cpu",
        queues=QUEUES,
        pid=0,
        versions=ENVIRONMENT.conditions("0").versions,
        started_at="",
        last_progress="",
    )
    announce(connect(url), card, ttl_s=3600)
    names = ",".join(list_names(QUEUES))
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING"]
    app.worker_main(["worker", "-P", "prefork", "-c", "1", "-Q", names, *options])


async def ask(url: str) -> None:
    """Await evaluations of different kernels."""
    problem, numbers = Problem(name="none", source="pass"), itertools.count()
    async with EvaluationQueue(url) as queue:

        async def call() -> None:
            await queue.evaluate(
                EvaluationRequest(
                    id=uuid.uuid4().hex,
                    problem=problem,
                    kernel=Kernel(source=f"kernel {next(numbers)} {uuid.uuid4().hex}"),
                    submitted_at="2026-01-01T00:00:00+00:00",
                )
            )

        await measure_all(call)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        serve(sys.argv[2])
    else:
        asyncio.run(ask(sys.argv[2]))
