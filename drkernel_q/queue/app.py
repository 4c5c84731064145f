"""The Celery app: task names, queues, time limits and the configuration that both ends share."""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import kombu
from celery import Celery

from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import EvaluationRequest, Stage
from drkernel_q.queue import keys
from drkernel_q.queue.connection import broker_url
from drkernel_q.request import Request
from drkernel_q.settings import Settings

#: The tasks; each takes one argument as a JSON object, an `EvaluationRequest`, the last an `AuditRequest`.
EVALUATE = "drkq.evaluate"
PROFILE = "drkq.profile"
CHECK = "drkq.check"
AUDIT = "drkq.audit"
TASKS = (EVALUATE, PROFILE, CHECK, AUDIT)
#: The stages of the tasks that do not take what the request asks for.
STAGES = {PROFILE: (Stage.CORRECTNESS, Stage.PROFILE), CHECK: (Stage.CORRECTNESS, Stage.INTEGRITY)}

#: Largest `EvaluationRequest.deadline_s`.
MAX_DEADLINE_S = 3600.0
#: Between each limit and the next one outside it: time for the inner one to act.
GRACE_S = 30.0
#: A worker's hold on a request, which it must extend well within this.
LEASE_S = 30.0
#: After this Celery gives an unacknowledged message to somebody else; longer than any evaluation can last.
VISIBILITY_TIMEOUT_S = MAX_DEADLINE_S + 4 * GRACE_S

#: First kombu whose sweep for abandoned messages can be made quick (before: about 90 s after they are due).
OLDEST_KOMBU = (5, 7)


_R = TypeVar("_R", bound=Request)


def as_task(task: str, request: _R) -> _R:
    """Return the request as a task takes it: `drkq.profile` and `drkq.check` have stages of their own."""
    if task not in STAGES or not isinstance(request, EvaluationRequest):
        return request
    return request.model_copy(update={"protocol": request.protocol.model_copy(update={"stages": STAGES[task]})})


class Limits(NamedTuple):
    """Time limits of one request on the worker, each inside the next by `GRACE_S`."""

    deadline_s: float
    """The judge is killed."""
    soft_s: float
    """Celery raises SoftTimeLimitExceeded in the task."""
    hard_s: float
    """Celery kills the pool child; the client asks for another attempt when the lease has run out."""


def limits(deadline_s: float = MAX_DEADLINE_S) -> Limits:
    """Nest the limits of a request around its deadline."""
    return Limits(deadline_s, deadline_s + GRACE_S, deadline_s + 2 * GRACE_S)


def eval_queue(capability: str) -> str:
    """Queue of everything that any worker of this capability may take: `cpu`, `cuda`, `sm_90`, `nvidia-h200`."""
    return f"eval.{capability}"


def direct_queue(host: str, device: str) -> str:
    """Queue of one worker, for work that must run on that device."""
    return f"dev.{host}.{device}"


def queue_names(host: str, device: str, capabilities: Iterable[str] = ()) -> tuple[str, ...]:
    """Queues that a worker serves: by kind of device, by capability, and its own."""
    kind = device.partition(":")[0]
    return (*(eval_queue(name) for name in (kind, *capabilities)), direct_queue(host, device))


def celery_app(
    broker: Settings | str, *, visibility_timeout_s: float = VISIBILITY_TIMEOUT_S, name: str = "drkq"
) -> Celery:
    """Make the app; both a worker and the tests start it, a client uses it only to build messages.

    Raises:
        NoBroker: the settings name no broker.
        BadSettings: the installed kombu is too old to recover lost messages in time.
    """
    if tuple(int(part) for part in kombu.__version__.split(".")[:2]) < OLDEST_KOMBU:
        raise BadSettings(f"kombu {kombu.__version__} is too old; drkq needs 5.7 or newer.")
    app = Celery(name, set_as_current=False)
    longest = limits()
    app.conf.update(
        broker_url=broker_url(broker),
        result_backend=None,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=True,
        # Another attempt at once when a pool child dies; the ledger counts attempts and ends the loop.
        task_reject_on_worker_lost=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        task_soft_time_limit=longest.soft_s,
        task_time_limit=longest.hard_s,
        task_track_started=False,
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_pool="prefork",
        worker_send_task_events=False,
        # The evaluation goes on while the broker is away; the fence makes a second delivery harmless.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=True,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_acquire_timeout=10,
        broker_transport_options=_transport_options(visibility_timeout_s),
    )
    return app


def _transport_options(visibility_timeout_s: float) -> dict[str, object]:
    return {
        "visibility_timeout": visibility_timeout_s,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_restore_limit": 100,
        # Priorities are lists of their own, whose order starves nobody; kombu's own priorities are strict.
        "priority_steps": [0],
        "queue_order_strategy": "drkernel_q.queue.turns:Turns",
        "socket_timeout": 15,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "retry_on_timeout": True,
        "global_keyprefix": keys.PREFIX,
    }
