"""The desk alone: what becomes of a delivery, whatever the work does."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from celery.exceptions import Reject, SoftTimeLimitExceeded
from redis import Redis

from drkernel_q.audit import AuditRequest
from drkernel_q.environment import Environment
from drkernel_q.evaluation import EvaluationRequest, Failure, Outcome, Reply, Stage
from drkernel_q.queue import desk, keys
from drkernel_q.queue.app import AUDIT, CHECK, EVALUATE, celery_app
from drkernel_q.queue.desk import Answer, Desk, Reaper
from drkernel_q.queue.ledger import MAX_DEATHS, Ledger
from drkernel_q.queue.registry import WorkerCard, announce
from drkernel_q.request import Request
from tests.queue.conftest import own_broker
from tests.queue.requests import echo_request
from tests.values import an_audit_request, an_environment, an_evaluation

pytestmark = pytest.mark.redis
LIST = "eval.cpu/training/1"


class Doing:
    """Work that answers, or raises, what it is told."""

    def __init__(self, outcome: Answer | BaseException | None = None) -> None:
        self.outcome = outcome or Answer(an_evaluation())
        self.lost = False
        self.done: list[EvaluationRequest | AuditRequest] = []

    def environment(self) -> Environment:
        return an_environment("cpu")

    def busy(self, request_id: str) -> AbstractContextManager[object]:
        return nullcontext()

    def do(self, request: EvaluationRequest | AuditRequest, cancelled: Callable[[], bool]) -> Answer:
        self.done.append(request)
        assert not cancelled()
        if isinstance(self.outcome, Answer):
            return self.outcome
        raise self.outcome


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with own_broker() as broker, broker.client() as client:
        yield client


@pytest.fixture
def table(redis: Redis) -> Desk:
    redis.flushall()
    return Desk(celery_app("redis://localhost"), redis, "w", "0")


def serve(table: Desk, request: Request, work: Doing, task: str = EVALUATE) -> None:
    table.serve(task, request.model_dump(mode="json"), LIST, work)


def replies(redis: Redis, request: Request) -> list[Reply]:
    rows: Any = redis.xrange(keys.RESULTS)
    found = [Reply.model_validate_json(fields["reply"]) for _, fields in rows]
    return [reply for reply in found if reply.id == request.id]


def test_a_task_with_stages_of_its_own_is_recorded_as_it_was_done(table: Desk, redis: Redis) -> None:
    request, work = echo_request(), Doing()
    serve(table, request, work, CHECK)
    (done,) = work.done
    assert isinstance(done, EvaluationRequest)
    assert done.protocol.stages == (Stage.CORRECTNESS, Stage.INTEGRITY)
    rows: Any = redis.xrange(keys.RESULTS)
    assert EvaluationRequest.model_validate_json(rows[0][1]["request"]) == done


def test_what_is_no_request_is_refused_and_what_cannot_be_done_is_for_others(table: Desk, redis: Redis) -> None:
    with pytest.raises(Reject) as refused:
        table.serve(EVALUATE, {"id": "of another release"}, LIST, Doing())
    assert not refused.value.requeue
    work = Doing()
    work.lost = True
    with pytest.raises(Reject) as postponed:
        serve(table, echo_request(), work)
    assert postponed.value.requeue
    assert not redis.zcard(keys.LEASES)


def test_out_of_time_is_the_deadline(table: Desk, redis: Redis) -> None:
    request = echo_request()
    serve(table, request, Doing(SoftTimeLimitExceeded()))
    (reply,) = replies(redis, request)
    assert reply.failure is not None
    assert reply.failure.kind == "deadline"


def test_a_worker_that_must_go_gives_back(table: Desk, redis: Redis) -> None:
    request = echo_request()
    with pytest.raises(SystemExit):
        serve(table, request, Doing(SystemExit(1)))
    assert replies(redis, request) == []
    serve(table, request, Doing())
    (reply,) = replies(redis, request)
    assert reply.attempt == 1


def test_an_audit_that_costs_its_workers_is_of_a_problem_that_cannot_be_used(table: Desk, redis: Redis) -> None:
    request = an_audit_request()
    for _ in range(MAX_DEATHS):
        Ledger(redis).claim(request, "w")
    serve(table, request, Doing(), AUDIT)
    (reply,) = replies(redis, request)
    assert reply.audit is not None
    assert "was lost, 2 times" in str(reply.audit.unusable)
    kernel = echo_request()
    for _ in range(MAX_DEATHS):
        Ledger(redis).claim(kernel, "w")
    serve(table, kernel, Doing())
    (reply,) = replies(redis, kernel)
    assert reply.evaluation is not None
    assert (reply.evaluation.outcome, reply.evaluation.lasting) == (Outcome.CRASHED, False)


def test_what_failed_here_is_passed_on_while_there_is_somebody_else(
    table: Desk, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(desk.time, "sleep", lambda _: waited.append(redis.llen(f"drkq:{LIST}")))  # type: ignore[arg-type]
    other = WorkerCard(
        id="other",
        host="there",
        device="cpu",
        device_name="x",
        device_kind="cpu",
        queues=("eval.cpu",),
        pid=1,
        started_at="",
        last_progress="",
    )
    announce(redis, other)
    request, work = echo_request(), Doing(Answer(Failure(kind="infrastructure", message="a loose cable")))
    serve(table, request, work)
    assert redis.llen(f"drkq:{LIST}") == 1
    serve(table, request, work)
    assert (len(work.done), redis.llen(f"drkq:{LIST}")) == (1, 2), "not done again, but put at the end of the list"
    assert waited == [2], "others can have it before this worker looks for more"
    assert [reply.attempt for reply in replies(redis, request)] == [1]


def test_a_reaper_lets_go_of_what_it_cannot_read(table: Desk, redis: Redis) -> None:
    """A request of another release, left by a worker of that release."""
    request = echo_request()
    Ledger(redis).claim(request, "of another release", task=EVALUATE, list_name=LIST)
    redis.hset(keys.claim(request.id), "request", '{"id": "of another release"}')
    reaper = Reaper(celery_app("redis://localhost"), redis)
    assert reaper.inherit("of another release") == 0
    assert not redis.zcard(keys.LEASES)


def test_a_reaper_begins_with_what_its_worker_left(table: Desk, redis: Redis) -> None:
    request = echo_request()
    Ledger(redis).claim(request, "w", task=EVALUATE, list_name=LIST)
    stop = threading.Event()
    stop.set()
    Reaper(celery_app("redis://localhost"), redis).run("w", stop)
    assert redis.llen(f"drkq:{LIST}") == 1
