"""A real Celery worker with a task that uses the ledger as the real one does, and does what the kernel says.

The kernel's source is a JSON object: `sleep` (seconds), `die` (kill the pool child on these attempts), `fail`
(kind of failure), `echo` (comes back as the evaluation's stdout).
"""

import argparse
import json
import os
import signal
import socket
import threading
import time
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.signals import worker_process_init
from redis import Redis

from drkernel_q.environment import Environment
from drkernel_q.evaluation import (
    Evaluation,
    EvaluationRequest,
    Failure,
    Integrity,
    Outcome,
    Reply,
)
from drkernel_q.local.process import tether
from drkernel_q.queue.app import EVALUATE, celery_app, queue_names
from drkernel_q.queue.connection import connect
from drkernel_q.queue.ledger import Claim, ClaimState, Ledger
from drkernel_q.queue.registry import WorkerCard, announce
from drkernel_q.queue.turns import list_names

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
        pid=os.getpid(),
        started_at=now,
        last_progress=now,
    )
    threading.Thread(target=_refresh, args=(url, card), daemon=True).start()
    tie = tether(signal.SIGKILL)
    worker_process_init.connect(lambda **_: tie(), weak=False)
    # fmt: off
    app.worker_main(
        ["worker", "-P", "prefork", "-c", "1", "-Q", ",".join(list_names(queues)), "-n", f"{name}@%h",
         "--without-gossip", "--without-mingle", "-l", "INFO"]
    )
    # fmt: on


def register(app: Celery, url: str, owner: str, lease_s: float) -> None:
    @app.task(name=EVALUATE)  # type: ignore[untyped-decorator]
    def evaluate(document: dict[str, Any]) -> None:
        request = EvaluationRequest.model_validate(document)
        redis = connect(url)
        ledger = Ledger(redis)
        claim = ledger.claim(request.id, owner, lease_s)
        if claim.wants_reply:
            ledger.finish(claim, request, _reply(request, claim, redis, owner))
        redis.close()


def _reply(request: EvaluationRequest, claim: Claim, redis: Redis, owner: str) -> Reply:
    order = json.loads(request.kernel.source)
    facts: dict[str, Any] = {}
    if claim.state is ClaimState.CANCELLED:
        facts["failure"] = Failure(kind="cancelled", message="nobody waits")
    elif claim.state is ClaimState.EXHAUSTED:
        facts["failure"] = Failure(kind="infrastructure", message=f"gave up after {claim.attempt} attempts")
    else:
        redis.rpush(STARTS, f"{request.id} {claim.attempt}")
        time.sleep(order.get("sleep", 0))
        if claim.attempt in order.get("die", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if "fail" in order:
            facts["failure"] = Failure(kind=order["fail"], message="as ordered")
        else:
            facts["evaluation"] = _evaluation(order.get("echo", ""))
    return Reply(id=request.id, attempt=claim.attempt, worker=owner, finished_at=_now(), **facts)


def _evaluation(echo: str) -> Evaluation:
    environment = Environment(
        device="cpu",
        device_name="echo",
        device_kind="cpu",
        host=socket.gethostname(),
        python="3",
        torch="0",
        triton="0",
        drkq="0",
    )
    return Evaluation(outcome=Outcome.CORRECT, integrity=Integrity.CLEAN, environment=environment, stdout=echo)


def _refresh(url: str, card: WorkerCard) -> None:
    redis = connect(url, retries=1000)
    while True:
        announce(redis, card)
        time.sleep(1)


def _now() -> str:
    return datetime.now(UTC).isoformat()


if __name__ == "__main__":
    main()
