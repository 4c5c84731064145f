"""The ledger alone: states of a claim, fences, leases, and many processes at once."""

import base64
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from drkernel_q.evaluation import EvaluationRequest, Failure, Reply
from drkernel_q.queue import keys
from drkernel_q.queue.app import (
    EVALUATE,
    GRACE_S,
    LEASE_S,
    MAX_DEADLINE_S,
    VISIBILITY_TIMEOUT_S,
    celery_app,
    limits,
    queue_names,
)
from drkernel_q.queue.desk import Reaper
from drkernel_q.queue.ledger import MAX_DEATHS, MAX_RETRIES, ClaimState, Ledger, Retry, encode
from drkernel_q.queue.message import Message
from drkernel_q.queue.registry import WorkerCard, WorkerState, announce, withdraw, workers
from drkernel_q.queue.routing import capabilities, check_device, route, why_not
from drkernel_q.queue.turns import list_name
from drkernel_q.request import Priority
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, own_broker, wait_until
from tests.queue.requests import echo_request
from tests.values import an_evaluation

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with own_broker() as broker, broker.client() as client:
        yield client


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis)


def _reply(request: EvaluationRequest, attempt: int = 1, worker: str = "a") -> Reply:
    failure = Failure(kind="infrastructure", message="none")
    return Reply(id=request.id, attempt=attempt, worker=worker, failure=failure, finished_at="now")


def _results(redis: Redis, request: EvaluationRequest) -> list[Reply]:
    rows: Any = redis.xrange(keys.RESULTS)
    replies = [Reply.model_validate_json(fields["reply"]) for _, fields in rows]
    return [reply for reply in replies if reply.id == request.id]


def test_the_limits_are_nested() -> None:
    limit = limits(MAX_DEADLINE_S)
    assert limit.deadline_s + GRACE_S <= limit.soft_s
    assert limit.soft_s + GRACE_S <= limit.hard_s
    assert limit.hard_s + GRACE_S <= VISIBILITY_TIMEOUT_S
    assert GRACE_S + limits(1).deadline_s > LEASE_S
    assert EvaluationRequest.model_fields["deadline_s"].metadata[1].le == MAX_DEADLINE_S
    options = celery_app("redis://localhost").conf.broker_transport_options
    assert options["visibility_timeout"] == VISIBILITY_TIMEOUT_S


def test_a_claim_excludes_others_until_it_is_finished(ledger: Ledger, redis: Redis) -> None:
    request = echo_request().model_copy(update={"reply_to": "drkq:reply:x"})
    redis.xadd("drkq:reply:x", {"opened": "1"})
    claim = ledger.claim(request, "a")
    assert (claim.state, claim.attempt) == (ClaimState.CLAIMED, 1)
    assert ledger.claim(request, "b").state is ClaimState.HELD
    assert ledger.extend(claim)
    assert ledger.finish(claim, request, _reply(request))
    late = ledger.claim(request, "b")
    assert late.state is ClaimState.FINISHED
    assert not late.wants_reply
    assert not ledger.extend(claim)
    assert _results(redis, request) == [_reply(request)]
    entries: Any = redis.xrange("drkq:reply:x")
    assert [fields["reply"] for _, fields in entries[1:]] == [redis.get(keys.result(request.id))]


def test_artefacts_are_sent_to_the_store_alone(ledger: Ledger, redis: Redis) -> None:
    request = echo_request().model_copy(update={"reply_to": "drkq:reply:y"})
    redis.xadd("drkq:reply:y", {"opened": "1"})
    reply = _reply(request).model_copy(update={"artefacts": "eJyrrgUAAXUA+Q=="})
    assert ledger.finish(ledger.claim(request, "a"), request, reply)
    assert _results(redis, request) == [reply]
    entries: Any = redis.xrange("drkq:reply:y")
    for text in (entries[1][1]["reply"], redis.get(keys.result(request.id))):
        assert Reply.model_validate_json(text) == _reply(request)


def test_finishing_twice_by_one_claim_stores_once(ledger: Ledger, redis: Redis) -> None:
    """What redis-py does when the first answer is lost."""
    request = echo_request()
    claim = ledger.claim(request, "a")
    assert ledger.finish(claim, request, _reply(request))
    assert ledger.finish(claim, request, _reply(request))
    assert len(_results(redis, request)) == 1


def test_an_expired_lease_gives_a_new_fence(ledger: Ledger, redis: Redis) -> None:
    request = echo_request()
    first = ledger.claim(request, "a", lease_s=0.05)
    time.sleep(0.1)
    second = ledger.claim(request, "b")
    assert (second.state, second.attempt) == (ClaimState.CLAIMED, 2)
    assert second.fence > first.fence
    assert not ledger.extend(first)
    assert not ledger.release(first)
    assert not ledger.finish(first, request, _reply(request, 1, "a"))
    assert ledger.finish(second, request, _reply(request, 2, "b"))
    assert [reply.worker for reply in _results(redis, request)] == ["b"]


def test_extending_keeps_a_claim(ledger: Ledger) -> None:
    request = echo_request()
    claim = ledger.claim(request, "a", lease_s=0.2)
    for _ in range(4):
        time.sleep(0.1)
        assert ledger.extend(claim, lease_s=0.2)
    assert ledger.claim(request, "b").state is ClaimState.HELD


def test_a_worker_takes_over_from_its_own_dead_child(ledger: Ledger) -> None:
    request = echo_request()
    ledger.claim(request, "a")
    again = ledger.claim(request, "a")
    assert (again.state, again.attempt) == (ClaimState.CLAIMED, 2)


def test_a_request_that_costs_its_workers_is_poisonous(ledger: Ledger, redis: Redis) -> None:
    request = echo_request()
    for attempt in range(1, MAX_DEATHS + 1):
        assert ledger.claim(request, "a").attempt == attempt
    last = ledger.claim(request, "a")
    assert (last.state, last.attempt) == (ClaimState.POISONOUS, MAX_DEATHS)
    assert ledger.claim(request, "b").state is ClaimState.HELD, "two workers would write the end"
    assert ledger.finish(last, request, _reply(request, last.attempt))
    assert len(_results(redis, request)) == 1
    letters: Any = redis.xrevrange(keys.POISON, count=1)
    assert EvaluationRequest.model_validate_json(letters[0][1]["request"]) == request


def test_a_worker_that_dies_while_it_writes_the_end_changes_nothing(ledger: Ledger) -> None:
    request = echo_request()
    for _ in range(MAX_DEATHS + 3):
        last = ledger.claim(request, "a")
    assert (last.state, last.attempt) == (ClaimState.POISONOUS, MAX_DEATHS)


def test_what_failed_is_tried_elsewhere_and_then_given_up(ledger: Ledger, redis: Redis) -> None:
    request = echo_request()
    again = Message("drkq:test:list", "message")
    for number in range(1, MAX_RETRIES + 1):
        owner = f"w{number}"
        claim = ledger.claim(request, owner)
        assert (claim.state, claim.attempt) == (ClaimState.CLAIMED, number)
        failure = _reply(request, number, owner)
        assert ledger.retry(claim, request, failure, again, others=True) is Retry.AGAIN
        assert ledger.retry(claim, request, failure, again, others=True) is Retry.AGAIN, "the answer was lost"
        assert redis.llen(again.key) == number
        assert ledger.claim(request, owner).state is ClaimState.ELSEWHERE
    last = ledger.claim(request, "w0")
    assert ledger.retry(last, request, _reply(request), again, others=True) is Retry.SPENT
    assert ledger.finish(last, request, _reply(request, last.attempt))
    assert ledger.retry(last, request, _reply(request), again, others=True) is Retry.LOST
    assert [reply.attempt for reply in _results(redis, request)] == [1, 2, 3]


def test_alone_a_worker_tries_again_itself_and_failures_are_no_deaths(ledger: Ledger) -> None:
    request = echo_request()
    for number in range(1, MAX_RETRIES + 2):
        claim = ledger.claim(request, "alone")
        assert (claim.state, claim.attempt) == (ClaimState.CLAIMED, number)
        ledger.retry(claim, request, _reply(request), Message("drkq:test:other", "m"), others=False)


def test_what_a_dead_worker_held_is_delivered_again(ledger: Ledger, redis: Redis) -> None:
    app = celery_app("redis://localhost")
    reaper = Reaper(app, redis, lease_s=1.2)
    request = echo_request()
    name = list_name("eval.cpu", Priority.TRAINING, 2)
    claim = ledger.claim(request, "a", lease_s=0.05, task=EVALUATE, list_name=name)
    time.sleep(0.2)
    assert reaper.look(100.0) == 0, "first it waits whether somebody lives"
    assert reaper.look(100.2) == reaper.look(100.4) == 0
    assert reaper.look(100.5) == 1
    assert reaper.look(100.7) == 0, "another look finds it looked after"
    text = redis.rpop(f"drkq:{name}")
    assert isinstance(text, str)
    body = json.loads(base64.b64decode(json.loads(text)["body"]))
    assert EvaluationRequest.model_validate(body[0][0]) == request
    second = ledger.claim(request, "b")
    assert (second.state, second.attempt) == (ClaimState.CLAIMED, 2)
    assert not ledger.finish(claim, request, _reply(request))
    assert ledger.finish(second, request, _reply(request, 2))
    assert not [row for row in ledger.overdue(0) if row.request_id == request.id]


def test_a_worker_that_begins_anew_brings_back_what_it_held(ledger: Ledger, redis: Redis) -> None:
    reaper = Reaper(celery_app("redis://localhost"), redis)
    mine, theirs = echo_request(), echo_request()
    for request, owner in ((mine, "again"), (theirs, "another")):
        ledger.claim(request, owner, task=EVALUATE, list_name="eval.cpu/backfill/0")
    assert reaper.inherit("again") == 1
    assert redis.llen("drkq:eval.cpu/backfill/0") == 1
    assert ledger.claim(mine, "again").attempt == 2
    assert reaper.inherit("nobody") == 0
    assert ledger.finish(ledger.claim(mine, "again"), mine, _reply(mine))
    assert reaper.inherit("again") == 0, "it is answered"


def test_a_message_that_is_dropped_as_held_is_missed_when_the_lease_ends(ledger: Ledger, redis: Redis) -> None:
    """A pool child died, the next one brought its request back at once, and another worker got it within the lease."""
    reaper = Reaper(celery_app("redis://localhost"), redis, lease_s=1.2)
    request = echo_request()
    ledger.claim(request, "a", lease_s=0.4, task=EVALUATE, list_name="eval.cpu/training/1")
    assert reaper.inherit("a") == 1
    assert ledger.claim(request, "b").state is ClaimState.HELD
    time.sleep(0.6)
    assert [reaper.look(now) for now in (100.0, 100.2, 100.4, 100.6)] == [0, 0, 0, 1]
    assert ledger.claim(request, "b").attempt == 2


def test_after_an_outage_whoever_lives_keeps_what_it_holds(ledger: Ledger, redis: Redis) -> None:
    """All leases ran out while the broker was away: the reaper lets the holders speak first."""
    reaper = Reaper(celery_app("redis://localhost"), redis, lease_s=1.2)
    request = echo_request()
    claim = ledger.claim(request, "a", lease_s=0.05, task=EVALUATE, list_name="eval.cpu/training/0")
    assert reaper.look(100.0) == 0
    time.sleep(0.2)
    assert reaper.look(141.0) == 0, "the look before was 40 s ago"
    assert ledger.extend(claim)
    assert reaper.look(141.2) == reaper.look(141.4) == reaper.look(141.6) == 0


def test_others_who_ask_for_the_same_get_the_same(ledger: Ledger, redis: Redis) -> None:
    """A later one by the content key; one of them whom a worker had already answered keeps what it has."""
    first, second, third = (echo_request("same") for _ in range(3))
    for request in (second, third):
        redis.hset(keys.followers(first.id), request.id, f"drkq:reply:none\n{encode(request)}")
    early = ledger.claim(third, "b")
    assert ledger.finish(early, third, _reply(third, 1, "b"))
    reply = _reply(first).model_copy(update={"failure": None, "evaluation": an_evaluation()})
    assert ledger.finish(ledger.claim(first, "a"), first, reply, content_key="key")
    for request in (second, third):
        assert ledger.claim(request, "c", content_key="key").state is ClaimState.FINISHED
    stored = redis.get(keys.result(second.id))
    assert isinstance(stored, str)
    shared = Reply.model_validate_json(stored).shared_with(second.id)
    assert (shared.cached, shared.measured_for, shared.worker) == (True, first.id, "a")
    assert [each.worker for each in _results(redis, third)] == ["b"]
    later = echo_request("same")
    known = ledger.claim(later, "c", content_key="key")
    assert known.state is ClaimState.KNOWN
    assert known.known == reply.shared_with(later.id)
    assert ledger.claim(echo_request("same"), "c", content_key="other").state is ClaimState.CLAIMED


def test_a_release_does_not_count(ledger: Ledger) -> None:
    request = echo_request()
    for _ in range(3 * MAX_DEATHS):
        claim = ledger.claim(request, "a")
        assert (claim.state, claim.attempt) == (ClaimState.CLAIMED, 1)
        assert ledger.release(claim)
    assert ledger.claim(request, "b").attempt == 1


def test_cancelled_before_it_was_claimed(ledger: Ledger, redis: Redis) -> None:
    request = echo_request()
    redis.set(keys.cancel(request.id), 1)
    assert ledger.is_cancelled(request.id)
    claim = ledger.claim(request, "a")
    assert (claim.state, claim.attempt) == (ClaimState.CANCELLED, 0)
    assert ledger.finish(claim, request, _reply(request))


def test_a_client_that_left_gets_no_new_stream(ledger: Ledger, redis: Redis) -> None:
    request = echo_request().model_copy(update={"reply_to": "drkq:reply:gone"})
    claim = ledger.claim(request, "a")
    assert ledger.finish(claim, request, _reply(request))
    assert not redis.exists("drkq:reply:gone")


def test_nothing_stays_for_ever(ledger: Ledger, redis: Redis) -> None:
    request = echo_request()
    claim = ledger.claim(request, "a")
    ledger.finish(claim, request, _reply(request))
    for key in redis.scan_iter(f"drkq:*{request.id}*"):
        assert redis.ttl(key) > 0, key


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["claim", "extend", "release", "finish", "expire", "cancel"]), st.sampled_from("abc")
        ),
        max_size=30,
    )
)
def test_any_history_has_one_end(ledger: Ledger, redis: Redis, steps: list[tuple[str, str]]) -> None:
    """Whatever workers do in whatever order: one result at most, and only by the newest claim."""
    request = echo_request()
    claims: dict[str, Any] = {}
    newest = None
    finished = False
    for step, owner in steps:
        claim = claims.get(owner)
        if step == "claim":
            made = ledger.claim(request, owner)
            if made.wants_reply:
                assert not finished
                claims[owner] = newest = made
            assert finished == (made.state is ClaimState.FINISHED)
        elif step == "expire":
            redis.hset(keys.claim(request.id), "expires_ms", 1) if newest else None
        elif step == "cancel":
            redis.set(keys.cancel(request.id), 1)
        elif claim is not None and step == "extend":
            assert ledger.extend(claim) == (claim is newest and not finished)
        elif claim is not None and step == "release":
            assert ledger.release(claim) == (claim is newest and not finished)
        elif claim is not None and step == "finish":
            ended = ledger.finish(claim, request, _reply(request, claim.attempt, owner))
            assert ended == (claim is newest)
            finished = finished or ended
    assert len(_results(redis, request)) == finished


CONTENDER = """
import sys
from drkernel_q.evaluation import EvaluationRequest, Failure, Reply
from drkernel_q.queue.connection import connect
from drkernel_q.queue.ledger import Ledger
from tests.queue.requests import echo_request
url, owner, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
ledger = Ledger(connect(url))
for number in range(count):
    request = echo_request().model_copy(update={"id": f"{number:032x}"})
    claim = ledger.claim(request, owner)
    if claim.wants_reply:
        failure = Failure(kind="infrastructure", message="")
        reply = Reply(id=request.id, attempt=claim.attempt, worker=owner, failure=failure, finished_at="")
        assert ledger.finish(claim, request, reply)
"""


@pytest.mark.slow
def test_eight_processes_finish_each_request_once(broker: Broker) -> None:
    count = 200
    processes = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, broker.url, f"p{number}", str(count)]) for number in range(8)
    ]
    assert [process.wait(PATIENT_S) for process in processes] == [0] * 8
    with broker.client() as client:
        rows: Any = client.xrange(keys.RESULTS)
    ids = Counter(Reply.model_validate_json(fields["reply"]).id for _, fields in rows)
    assert len(ids) == count
    assert set(ids.values()) == {1}


def _card(worker_id: str, device: str, **facts: Any) -> WorkerCard:
    basics = {"host": "here", "device_name": "x", "device_kind": "cpu", "pid": os.getpid()}
    queues = queue_names("here", device)
    return WorkerCard(id=worker_id, device=device, queues=queues, started_at="", last_progress="", **(basics | facts))


def test_a_card_expires_unless_it_is_refreshed(redis: Redis) -> None:
    announce(redis, _card("stays", "cuda:1"))
    announce(redis, _card("leaves", "cpu"))
    announce(redis, _card("dies", "cuda:0"), ttl_s=0.05)
    assert [card.id for card in workers(redis)] == ["leaves", "dies", "stays"]
    withdraw(redis, "leaves")
    wait_until(lambda: [card.id for card in workers(redis)] == ["stays"], "the dead one is gone")
    assert redis.smembers(keys.WORKERS) == {"stays"}
    announce(redis, _card("dies", "cuda:0"))
    assert [card.id for card in workers(redis)] == ["dies", "stays"]


def test_a_card_of_another_release_is_passed_over(redis: Redis) -> None:
    announce(redis, _card("ours", "cpu"))
    redis.set(keys.worker("theirs"), '{"id": "theirs", "new_field": 1}')
    redis.sadd(keys.WORKERS, "theirs")
    assert "theirs" not in [card.id for card in workers(redis)]
    assert "ours" in [card.id for card in workers(redis)]


def test_a_kind_of_device_may_be_asked_for() -> None:
    """Of a cluster with several kinds, one run takes one kind; the model tells two apart that have one generation."""
    h200, h100 = capabilities("sm_90", "NVIDIA H200"), capabilities("sm_90", "NVIDIA H100 80GB HBM3")
    assert (h200, h100) == (("sm_90", "nvidia-h200"), ("sm_90", "nvidia-h100-80gb-hbm3"))
    assert capabilities("sm_70", "Tesla V100-SXM2-32GB")[1] == "nvidia-tesla-v100-sxm2-32gb"
    cards = [_card("a", "cpu"), _card("b", "cuda:0", capabilities=h200), _card("c", "cuda:1", capabilities=h100)]
    for device in ("sm_90", "nvidia-h200", "nvidia-h100-80gb-hbm3"):
        check_device(device)
        assert route(cards, device) == f"eval.{device}"
    assert route(cards, "nvidia-b200") is None
    assert route(cards[:1], "sm_90") is None
    resting = _card("d", "cuda:2", capabilities=h200, state=WorkerState.QUARANTINED, reason="it is hot.")
    assert route([resting], "nvidia-h200") is None
    assert "is quarantined" in why_not([resting], "nvidia-h200")
    assert [card for card in cards if "eval.nvidia-h200" in queue_names("h", card.device, card.capabilities)] == [
        cards[1]
    ]


def test_routes() -> None:
    cpu, gpu = _card("a", "cpu"), _card("b", "cuda:0", capabilities=("sm_90",))
    resting = _card("c", "cuda:1", state=WorkerState.QUARANTINED)
    assert route([cpu, gpu], "auto") == "eval.cuda"
    assert route([cpu, resting], "auto") == "eval.cpu"
    assert route([cpu, resting], "cuda") is None
    assert route([cpu, gpu], "cuda:0") == "dev.here.cuda:0"
    assert route([cpu, gpu, resting], "cuda:1") is None
    assert route([gpu], "cpu") is None
    assert route([], "auto") is None
    assert queue_names("h", "cuda:0", ["sm_90"]) == ("eval.cuda", "eval.sm_90", "dev.h.cuda:0")
    assert queue_names("h", "cpu") == ("eval.cpu", "dev.h.cpu")
