"""A real Celery worker behind a real desk that does what the kernel says.

The kernel's source is a JSON object: `sleep` (seconds), `die` (kill the pool child on these attempts), `fail`
(kind of failure) and `fail_on` (only on these attempts), `outcome`, `echo` (comes back as the evaluation's stdout).
"""

import argparse
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

from celery import Celery, Task
from celery.signals import worker_process_init, worker_ready

from drkernel_q.audit import AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure, Integrity, Outcome
from drkernel_q.local.process import tether
from drkernel_q.queue import keys
from drkernel_q.queue.app import EVALUATE, celery_app, queue_names
from drkernel_q.queue.connection import connect
from drkernel_q.queue.desk import Answer, Desk, Reaper
from drkernel_q.queue.registry import WorkerCard, announce
from drkernel_q.queue.turns import list_names

RULES = "0"
ENVIRONMENT = Environment(
    device="cpu",
    device_name="echo",
    device_kind="cpu",
    host=socket.gethostname(),
    python="3",
    torch="0",
    triton="0",
    drkq="0",
)
#: List to which every start of the task is pushed, as `<request id> <attempt>`.
STARTS = "drkq:test:starts"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    device: str = parser.parse_args().device
    url = os.environ["DRKQ_BROKER_URL"]
    name = os.environ.get("ECHO_NAME", f"echo-{device}")
    lease_s = float(os.environ.get("ECHO_LEASE_S", "30"))
    if "ECHO_LAST_WORDS" in os.environ:
        raise SystemExit(os.environ["ECHO_LAST_WORDS"])
    app = celery_app(url, visibility_timeout_s=float(os.environ.get("ECHO_VISIBILITY_S", "3600")))
    register(app, url, name, lease_s)
    queues = queue_names(socket.gethostname(), device)
    now = _now()
    card = WorkerCard(
        id=name,
        host=socket.gethostname(),
        device=device,
        device_name="echo",
        device_kind="cpu",
        queues=queues,
        versions=ENVIRONMENT.conditions(RULES).versions,
        pid=os.getpid(),
        started_at=now,
        last_progress=now,
    )
    # Who is announced sooner may be told to leave before Celery listens to that, and dies of it.
    refresh = threading.Thread(target=_refresh, args=(url, card), daemon=True)
    worker_ready.connect(lambda **_: refresh.start(), weak=False)
    # fmt: off
    app.worker_main(
        ["worker", "-P", "prefork", "-c", "1", "-Q", ",".join(list_names(queues)), "-n", f"{name}@%h",
         "--without-gossip", "--without-mingle", "-l", "INFO"]
    )
    # fmt: on


class Echo:
    """Does what a request says, behind the same desk as a real worker."""

    lost = False

    def __init__(self, app: Celery, url: str, owner: str, lease_s: float) -> None:
        self.redis = connect(url)
        self.desk = Desk(app, self.redis, owner, RULES, lease_s=lease_s)
        reaper = Reaper(app, connect(url), lease_s=lease_s)
        threading.Thread(target=reaper.run, args=(owner, threading.Event()), daemon=True).start()

    def environment(self) -> Environment:
        return ENVIRONMENT

    def busy(self, request_id: str) -> AbstractContextManager[object]:
        return nullcontext()

    def do(self, request: EvaluationRequest | AuditRequest, cancelled: Callable[[], bool]) -> Answer:
        assert isinstance(request, EvaluationRequest)
        order = json.loads(request.kernel.source)
        attempt = int(self.redis.hget(keys.claim(request.id), "attempt") or 0)
        self.redis.rpush(STARTS, f"{request.id} {attempt}")
        end = time.monotonic() + order.get("sleep", 0)
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))
            if left_s > 0.1 and cancelled():
                return Answer(Failure(kind="cancelled", message="nobody waits any more"))
        if attempt in order.get("die", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt in order.get("fail_on", (attempt,)) and "fail" in order:
            return Answer(Failure(kind=order["fail"], message="as ordered"))
        return Answer(_evaluation(order.get("echo", ""), order.get("outcome", "correct")))


def register(app: Celery, url: str, owner: str, lease_s: float) -> None:
    mine: list[Echo] = []
    tie = tether(signal.SIGKILL)

    def start(**_: Any) -> None:
        tie()
        mine.append(Echo(app, url, owner, lease_s))

    worker_process_init.connect(start, weak=False)

    @app.task(name=EVALUATE, bind=True)  # type: ignore[untyped-decorator]
    def evaluate(task: Task, payload: dict[str, Any]) -> None:
        mine[0].desk.serve(EVALUATE, payload, task.request.delivery_info["routing_key"], mine[0])


def _evaluation(echo: str, outcome: str) -> Evaluation:
    return Evaluation(
        outcome=Outcome(outcome), integrity=Integrity.CLEAN, environment=ENVIRONMENT, rules_version=RULES, stdout=echo
    )


def _refresh(url: str, card: WorkerCard) -> None:
    redis = connect(url, retries=1000)
    while True:
        announce(redis, card)
        time.sleep(1)


def _now() -> str:
    return datetime.now(UTC).isoformat()


if __name__ == "__main__":
    main()
