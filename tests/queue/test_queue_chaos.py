"""Faults: connections cut, brokers killed, workers killed. Every request still ends in exactly one result."""

import asyncio
import base64
import json
import os
import pickle
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis import asyncio as aioredis
from redis.exceptions import RedisError

from drkernel_q.evaluation import Evaluation, EvaluationRequest, Integrity, Outcome, Reply
from drkernel_q.queue import keys
from drkernel_q.queue.app import EVALUATE, celery_app
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.connection import connect, connect_async
from drkernel_q.queue.ledger import MAX_DEATHS, MAX_RETRIES
from drkernel_q.queue.message import list_keys, message
from drkernel_q.queue.watch import Patience
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, StartWorker, kill_tree, own_broker, wait_until
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request

pytestmark = [pytest.mark.redis, pytest.mark.slow]
#: The client's own recovery does not act within a test that is about Celery's.
LEAVE_IT_TO_CELERY = Patience(look_s=1000, lost_s=1000)
#: The client's own recovery acts at once.
EAGER = Patience(look_s=0.3, lost_s=0.5)


def _starts(broker: Broker) -> Counter[str]:
    with broker.client() as client:
        rows: Any = client.lrange(STARTS, 0, -1)
        return Counter(row.split()[0] for row in rows)


def _results(broker: Broker) -> Counter[str]:
    with broker.client() as client:
        rows: Any = client.xrange(keys.RESULTS)
        return Counter(Reply.model_validate_json(fields["reply"]).id for _, fields in rows)


async def _started(broker: Broker, request_id: str) -> None:
    await asyncio.to_thread(wait_until, lambda: _starts(broker)[request_id], "the evaluation has started")


async def _meanwhile(
    url: str, step: Callable[[aioredis.Redis], Awaitable[Any]], every_s: float, work: Awaitable[Any]
) -> Any:
    """Do `step` again and again until `work` is done, at first every so many seconds, and then more and more rarely.

    How long it takes to recover from one step is the machine's to say; a busy one would never get on.
    """
    redis = connect_async(url)

    async def repeat() -> None:
        pause_s = every_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s *= 1.03
            try:
                await step(redis)
            except (RedisError, OSError):
                continue

    task = asyncio.create_task(repeat())
    try:
        return await work
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
        await redis.aclose()


async def test_connections_cut_again_and_again(broker: Broker, start_worker: StartWorker) -> None:
    start_worker(broker)
    requests = [echo_request(str(number)) for number in range(200)]
    async with EvaluationQueue(broker.url, patience=EAGER) as queue:
        work = asyncio.gather(*(queue.evaluate(request, timeout_s=PATIENT_S) for request in requests))
        found: list[Evaluation] = await _meanwhile(
            broker.url, lambda redis: redis.client_kill_filter(_type="normal", skipme=True), 0.05, work
        )
    assert [evaluation.stdout for evaluation in found] == [str(number) for number in range(200)]
    assert _results(broker) == Counter(request.id for request in requests)


async def test_broker_killed_and_started_again(start_worker: StartWorker) -> None:
    """With an append-only file nothing is lost; the client only waits."""
    with own_broker("--appendonly", "yes") as broker:
        start_worker(broker)
        requests = [echo_request(str(number), sleep=0.3) for number in range(6)]
        async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
            handles = [await queue.submit(request) for request in requests]
            await _started(broker, handles[0].id)
            broker.stop()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(broker.start)
            found = [await handle.evaluation(PATIENT_S) for handle in handles]
        assert [evaluation.stdout for evaluation in found] == list("012345")
        assert set(_results(broker).values()) == {1}


async def test_broker_that_forgot_everything(broker: Broker, start_worker: StartWorker) -> None:
    """The clients know what is still wanted, and send it again."""
    start_worker(broker)
    requests = [echo_request(str(number), sleep=0.3) for number in range(6)]
    async with EvaluationQueue(broker.url, patience=EAGER) as queue:
        handles = [await queue.submit(request) for request in requests]
        await handles[0]
        broker.stop()
        await asyncio.to_thread(broker.start)
        found = [await handle.evaluation(PATIENT_S) for handle in handles]
    assert [evaluation.stdout for evaluation in found] == list("012345")


async def test_broker_hangs(broker: Broker, start_worker: StartWorker) -> None:
    start_worker(broker)
    async with EvaluationQueue(broker.url) as queue:
        first = await queue.submit(echo_request("first", sleep=0.3))
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        second = asyncio.create_task(queue.evaluate(echo_request("second")))
        await asyncio.sleep(2)
        broker.process.send_signal(signal.SIGCONT)
        assert (await first.evaluation(PATIENT_S)).stdout == "first"
        assert (await asyncio.wait_for(second, PATIENT_S)).stdout == "second"
    assert set(_results(broker).values()) == {1}


async def test_broker_is_full_for_a_while(broker: Broker, start_worker: StartWorker) -> None:
    """Results and messages wait; Celery's own loop does not survive it, so a supervisor must start it again."""
    start_worker(broker, name="w1", lease_s=2)
    async with EvaluationQueue(broker.url, patience=EAGER) as queue:
        running = await queue.submit(echo_request("running", sleep=1))
        await _started(broker, running.id)
        with broker.client() as client:
            client.config_set("maxmemory", "100kb")
        task = asyncio.create_task(queue.evaluate(echo_request("patient")))
        await asyncio.sleep(2)
        assert not running.done()
        assert not task.done()
        with broker.client() as client:
            client.config_set("maxmemory", 0)
        await asyncio.to_thread(start_worker, broker, name="w2")
        assert (await running.evaluation(PATIENT_S)).stdout == "running"
        assert (await asyncio.wait_for(task, PATIENT_S)).stdout == "patient"
    assert set(_results(broker).values()) == {1}


async def test_one_message_delivered_twice(broker: Broker, start_worker: StartWorker) -> None:
    request = echo_request("once", sleep=0.3)
    app = celery_app(broker.url)
    with broker.client() as client:
        for _ in range(2):
            made = message(app, EVALUATE, request, list_name="eval.cpu/interactive/0")
            client.lpush(made.key, made.text)
    start_worker(broker, name="w1")
    start_worker(broker, name="w2")
    async with EvaluationQueue(broker.url) as queue:
        assert (await queue.evaluate(request)).stdout == "once"
        await queue.evaluate(echo_request())
    assert _starts(broker)[request.id] == 1
    assert _results(broker)[request.id] == 1


async def test_a_task_longer_than_the_visibility_timeout(broker: Broker, start_worker: StartWorker) -> None:
    """Celery delivers it again and again; the ledger lets it run once."""
    for name in ("w1", "w2"):
        start_worker(broker, name=name, visibility_s=1)
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        handle = await queue.submit(echo_request("long", sleep=4))
        assert (await handle.evaluation(PATIENT_S)).stdout == "long"
    assert _starts(broker) == {handle.id: 1}


async def test_worker_killed_celery_delivers_again(broker: Broker, start_worker: StartWorker) -> None:
    doomed = start_worker(broker, name="w1", visibility_s=2, lease_s=1)
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        handle = await queue.submit(echo_request("survivor", sleep=1))
        await _started(broker, handle.id)
        kill_tree(doomed)
        await asyncio.to_thread(start_worker, broker, name="w2", visibility_s=2, lease_s=1)
        reply = await handle.reply(PATIENT_S)
    assert (reply.attempt, reply.worker) == (2, "w2")
    assert _results(broker) == {handle.id: 1}


async def test_worker_killed_the_others_deliver_again(broker: Broker, start_worker: StartWorker) -> None:
    """With a visibility timeout of an hour the lease decides, whether or not the client is still there."""
    doomed = start_worker(broker, name="w1", lease_s=1)
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        handle = await queue.submit(echo_request("survivor", sleep=1))
        await _started(broker, handle.id)
        kill_tree(doomed)
        await asyncio.to_thread(start_worker, broker, name="w2", lease_s=1)
        reply = await handle.reply(PATIENT_S)
    assert (reply.attempt, reply.worker) == (2, "w2")
    assert _results(broker) == {handle.id: 1}


async def test_message_lost_between_broker_and_worker(broker: Broker, start_worker: StartWorker) -> None:
    """A worker that popped it died before it could say so: later messages overtake the lost one."""
    start_worker(broker)
    async with EvaluationQueue(broker.url, patience=EAGER) as queue:
        blocker = await queue.submit(echo_request(sleep=0.5))
        await _started(broker, blocker.id)
        lost = await queue.submit(echo_request("lost"))
        with broker.client() as client:
            assert any(client.rpop(key) for key in list_keys("eval.cpu"))
        for _ in range(80):
            await queue.submit(echo_request(sleep=0.05))
        await asyncio.sleep(2.5)
        last = await queue.submit(echo_request(sleep=0.1))
        assert (await lost.evaluation(PATIENT_S)).stdout == "lost"
        assert not last.done(), "the queue had to be empty before it was missed"


async def test_a_poisonous_request_ends_and_others_are_served(broker: Broker, start_worker: StartWorker) -> None:
    start_worker(broker)
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        poison = await queue.submit(echo_request(die=[1, 2, 3, 4]))
        healthy = await queue.submit(echo_request("healthy"))
        reply = await poison.reply(PATIENT_S)
        assert reply.evaluation is not None
        assert reply.evaluation.outcome is Outcome.CRASHED
        assert reply.evaluation.integrity is Integrity.UNKNOWN
        assert (await healthy.evaluation(PATIENT_S)).stdout == "healthy"
    assert _starts(broker) == {poison.id: MAX_DEATHS, healthy.id: 1}
    with broker.client() as client:
        ((_, letter),) = client.xrange(keys.POISON)  # type: ignore[misc]
    assert EvaluationRequest.model_validate_json(letter["request"]).id == poison.id


async def test_what_fails_on_one_worker_is_tried_on_another(broker: Broker, start_worker: StartWorker) -> None:
    for name in ("w1", "w2"):
        start_worker(broker, name=name)
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        reply = await (await queue.submit(echo_request("second", fail="infrastructure", fail_on=[1]))).reply(PATIENT_S)
        assert reply.evaluation is not None
        assert reply.evaluation.stdout == "second"
        hopeless = await (await queue.submit(echo_request(fail="infrastructure"))).reply(PATIENT_S)
        assert hopeless.failure is not None
        assert (hopeless.failure.kind, hopeless.attempt) == ("infrastructure", MAX_RETRIES + 1)
    with broker.client() as client:
        rows: Any = client.xrange(keys.RESULTS)
    replies = [Reply.model_validate_json(fields["reply"]) for _, fields in rows]
    tried = [each.worker for each in replies if each.id == reply.id]
    assert sorted(tried) == ["w1", "w2"], "and the failure is kept for the store"
    tried = [each.worker for each in replies if each.id == hopeless.id]
    assert tried[0] != tried[1] != tried[2]


async def test_a_worker_asked_to_leave_finishes_and_the_rest_is_served(
    broker: Broker, start_worker: StartWorker
) -> None:
    leaver = start_worker(broker, name="w1")
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        handles = [await queue.submit(echo_request(str(number), sleep=1)) for number in range(3)]
        await _started(broker, handles[0].id)
        leaver.terminate()
        await asyncio.to_thread(start_worker, broker, name="w2")
        replies = [await handle.reply(PATIENT_S) for handle in handles]
    assert [reply.worker for reply in replies] == ["w1", "w2", "w2"]
    assert {reply.attempt for reply in replies} == {1}
    assert leaver.wait(PATIENT_S) == 0


async def test_a_quiet_client_and_worker_stay_connected(broker: Broker, start_worker: StartWorker) -> None:
    """Longer than every time-out of the blocking reads (redis-py 8 cuts them at 5 s by default)."""
    start_worker(broker)
    async with EvaluationQueue(broker.url, patience=LEAVE_IT_TO_CELERY) as queue:
        await queue.evaluate(echo_request())
        await asyncio.sleep(9)
        assert (await queue.evaluate(echo_request("awake"))).stdout == "awake"


async def test_a_pickled_message_is_never_opened(broker: Broker, start_worker: StartWorker, tmp_path: Path) -> None:
    start_worker(broker)
    mark = tmp_path / "opened"

    class Opened:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(mark),))

    made = message(celery_app(broker.url), EVALUATE, echo_request(), list_name="eval.cpu/interactive/0")
    document = json.loads(made.text)
    document["body"] = base64.b64encode(pickle.dumps(Opened())).decode()
    document["content-type"] = "application/x-python-serialize"
    document["content-encoding"] = "binary"
    document["properties"]["delivery_tag"] = str(uuid.uuid4())
    with broker.client() as client:
        client.lpush(made.key, json.dumps(document))
    async with EvaluationQueue(broker.url) as queue:
        assert (await queue.evaluate(echo_request("still here"), timeout_s=PATIENT_S)).stdout == "still here"
    assert not mark.exists()


async def test_over_tls(start_worker: StartWorker, unused_tcp_port: int, tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-out", str(certificate), "-keyout", str(key)]
    command = [*request.split(" "), *names]
    subprocess.run(command, check=True, capture_output=True)
    # fmt: off
    options = ["--tls-port", str(unused_tcp_port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
               "--tls-auth-clients", "no", "--bind", "127.0.0.1"]
    # fmt: on
    with own_broker(*options) as broker:
        query = f"ssl_cert_reqs=required&ssl_ca_certs={certificate}"
        broker.url = f"rediss://:secret@localhost:{unused_tcp_port}/0?{query}"
        start_worker(broker)
        async with EvaluationQueue(broker.url) as queue:
            assert (await queue.evaluate(echo_request("sealed"))).stdout == "sealed"
        # A certificate of an authority that nobody knows, and a URL that says nothing about it.
        unknown = broker.url.partition("?")[0]
        for connecting in (connect(unknown, retries=0).ping, celery_app(unknown).connection_for_write().connect):
            with pytest.raises((RedisError, OperationalError), match="CERTIFICATE_VERIFY_FAILED"):
                connecting()


async def test_a_user_with_few_rights_is_enough(start_worker: StartWorker) -> None:
    """The rights that docs/decisions/0003-queue.md names, for clients and workers of a cluster."""
    rights = "~drkq:* resetchannels &* -@all +@read +@write +@list +@hash +@sortedset +@set +@string +@stream"
    rights += " +@scripting +@pubsub +@transaction +@connection +ping -@dangerous +info +time"
    with own_broker("--user", "drkq", "on", ">few", *rights.split(" ")) as broker:
        broker.url = broker.url.replace(":secret@", "drkq:few@")
        start_worker(broker)
        async with EvaluationQueue(broker.url, patience=EAGER) as queue:
            assert (await queue.evaluate(echo_request("allowed"))).stdout == "allowed"
            (await queue.submit(echo_request())).cancel()
