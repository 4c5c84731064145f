"""The client against a real broker and a real Celery worker: what it gives, and its errors."""

import asyncio
import random
import socket
from typing import Any

import pytest

from drkernel_q.errors import (
    BadProblem,
    BadSettings,
    Cancelled,
    DrkqError,
    InfrastructureFailure,
    NoBroker,
    NoDevice,
    NoWorker,
    TimedOut,
)
from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.queue import keys
from drkernel_q.queue.app import queue_names
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.handle import Handle
from drkernel_q.queue.registry import give_up, withdraw
from drkernel_q.queue.watch import Patience
from drkernel_q.request import Priority
from drkernel_q.settings import Settings
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, StartWorker, kill_tree, own_broker, wait_until
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request

pytestmark = pytest.mark.redis
IMPATIENT = Patience(connect_s=0.3, worker_s=0.3)


def _starts(broker: Broker) -> list[str]:
    with broker.client() as client:
        rows: Any = client.lrange(STARTS, 0, -1)
        return [row.split()[0] for row in rows]


async def test_submit_and_await(service: Broker) -> None:
    with service.client() as client:
        before: Any = client.xlen(keys.RESULTS)
        async with EvaluationQueue(Settings(broker_url=service.url)) as queue:
            handle = await queue.submit(echo_request("hello"))
            assert handle.queue == "eval.cpu"
            reply = await handle
            assert (reply.id, reply.attempt) == (handle.id, 1)
            assert reply.evaluation is not None
            assert reply.evaluation.stdout == "hello"
            assert await handle == reply, "a handle can be awaited again"
            assert (await queue.evaluate(echo_request("again"), device="cpu")).stdout == "again"
        assert client.xlen(keys.RESULTS) == before + 2
        assert not list(client.scan_iter("drkq:reply:*")), "the reply stream goes with its client"
        assert not list(client.scan_iter("drkq:waiters:*"))


async def test_one_request_submitted_many_times_at_once_is_sent_once_and_answers_all(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        request = echo_request("same", sleep=0.1)
        found = await asyncio.gather(*(queue.evaluate(request, timeout_s=PATIENT_S) for _ in range(8)))
    assert {evaluation.stdout for evaluation in found} == {"same"}
    assert _starts(service).count(request.id) == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("problem", BadProblem),
        ("infrastructure", InfrastructureFailure),
        ("deadline", TimedOut),
        ("cancelled", Cancelled),
    ],
)
async def test_a_failure_becomes_its_error(service: Broker, kind: str, error: type[DrkqError]) -> None:
    async with EvaluationQueue(service.url) as queue:
        with pytest.raises(error, match="as ordered"):
            await queue.evaluate(echo_request(fail=kind))
        reply = await (await queue.submit(echo_request(fail=kind)))
        assert reply.failure is not None
        assert reply.failure.kind == kind


@pytest.mark.slow
async def test_three_hundred_at_once_each_get_their_own(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        names = [f"n{number}" for number in range(300)]
        found = await asyncio.gather(*(queue.evaluate(echo_request(name)) for name in names))
    assert [evaluation.stdout for evaluation in found] == names
    with service.client() as client:
        assert len(client.client_list()) < 20, "connections grow with requests"


@pytest.mark.slow
async def test_cancel_storm(service: Broker) -> None:
    """Whoever is not cancelled gets its own result, whatever was cancelled around it (redis-py#2665)."""
    dice = random.Random(7)
    async with EvaluationQueue(service.url) as queue:
        tasks = {
            name: asyncio.create_task(queue.evaluate(echo_request(name, sleep=0.001))) for name in map(str, range(300))
        }
        doomed = dice.sample(sorted(tasks), 150)
        for name in doomed:
            await asyncio.sleep(dice.random() * 0.004)
            tasks[name].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for name, task in tasks.items():
            if task.cancelled():
                assert name in doomed
            else:
                assert task.result().stdout == name
        assert sum(task.cancelled() for task in tasks.values()) > 50
        assert (await queue.evaluate(echo_request("after"))).stdout == "after"


async def test_cancelled_before_its_turn_is_never_started(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        blocker = await queue.submit(echo_request(sleep=0.4))
        awaited = await queue.submit(echo_request("awaited"))
        given_up = await queue.submit(echo_request("given up"))
        waiting = asyncio.create_task(awaited.reply())
        await asyncio.sleep(0.05)
        waiting.cancel()
        given_up.cancel()
        with pytest.raises(Cancelled):
            await given_up
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await blocker
        await queue.evaluate(echo_request("last"))
    started = _starts(service)
    assert blocker.id in started
    assert awaited.id not in started
    assert given_up.id not in started


async def test_one_waiter_leaving_does_not_cancel_the_others(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        handle = await queue.submit(echo_request("shared", sleep=0.3))
        leaver, stayer = (asyncio.create_task(handle.reply()) for _ in range(2))
        await asyncio.sleep(0.05)
        leaver.cancel()
        reply = await stayer
        assert reply.evaluation is not None


async def test_two_clients_may_wait_for_one_request(service: Broker) -> None:
    """The first one's leaving does not take the reply from the second; a late one gets the stored reply."""
    request = echo_request("both", sleep=0.3)
    async with EvaluationQueue(service.url) as second:
        async with EvaluationQueue(service.url) as first:
            (await first.submit(request)).cancel()
            handle = await second.submit(request)
        assert handle.id == request.id
        late = echo_request("late")
        async with EvaluationQueue(service.url) as first:
            await (await first.submit(late))
        reply = await (await second.submit(late)).reply(PATIENT_S)
        assert reply.evaluation is not None
        assert reply.evaluation.stdout == "late"
    assert _starts(service).count(late.id) == 1


async def test_timeout_leaves_the_request_alone(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        handle = await queue.submit(echo_request("slow", sleep=0.4))
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            await handle.reply(0.1)
        assert (await handle.evaluation(PATIENT_S)).stdout == "slow"


async def test_priorities_go_first(service: Broker) -> None:
    """But for the turns of the others."""
    async with EvaluationQueue(service.url) as queue:
        blocker = await queue.submit(echo_request(sleep=0.5))
        handles: dict[str, Priority] = {}
        for priority in list(reversed(Priority)) * 5:
            request = echo_request().model_copy(update={"priority": priority})
            handles[(await queue.submit(request)).id] = priority
        await blocker
        await queue.evaluate(echo_request(), priority=Priority.BACKFILL)
    started = [handles[request_id] for request_id in _starts(service) if request_id in handles]
    assert len(started) == len(handles)
    places = {name: sum(place for place, each in enumerate(started) if each is name) for name in Priority}
    assert sorted(places, key=lambda name: places[name]) == list(Priority)


@pytest.mark.slow
async def test_evaluate_many_bounds_what_is_in_flight(service: Broker) -> None:
    open_now, most = 0, 0

    class Counting(EvaluationQueue):
        async def submit(self, request: EvaluationRequest, **options: Any) -> Handle:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            return await super().submit(request, **options)

    async with Counting(service.url) as queue:
        names = [f"m{number}" for number in range(40)]
        seen = []
        # The one worker is at the first while the others are submitted.
        requests = (echo_request(name, sleep=1 if name == "m0" else 0) for name in names)
        async for reply in queue.evaluate_many(requests, in_flight=5):
            open_now -= 1
            assert reply.evaluation is not None
            seen.append(reply.evaluation.stdout)
    assert sorted(seen) == sorted(names)
    assert most == 5


async def test_leaving_evaluate_many_early_cancels_the_rest(service: Broker) -> None:
    requests = [echo_request(str(number), sleep=0.2) for number in range(10)]
    async with EvaluationQueue(service.url) as queue:
        replies = queue.evaluate_many(requests, in_flight=10)
        async for _ in replies:
            break
        await replies.aclose()
        await queue.evaluate(echo_request())
    assert len(set(_starts(service)) & {request.id for request in requests}) < 4


@pytest.mark.slow
async def test_submit_waits_while_the_queue_is_full(service: Broker) -> None:
    async with EvaluationQueue(service.url, max_depth=3) as queue:
        blocker = await queue.submit(echo_request(sleep=0.5))
        for _ in range(30):
            if not await queue.depth("eval.cpu"):
                break
            await asyncio.sleep(0.02)
        for _ in range(3):
            await queue.submit(echo_request())
        assert not blocker.done()
        handle = await queue.submit(echo_request("fits now"))
        assert blocker.done(), "the fourth message went into a list of three"
        assert (await handle.evaluation(PATIENT_S)).stdout == "fits now"


@pytest.mark.slow
async def test_a_large_kernel_goes_through(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        request = echo_request("large", padding="x" * 10_000_000)
        assert (await queue.evaluate(request)).stdout == "large"


@pytest.mark.slow
async def test_devices_and_their_errors(service: Broker, start_worker: StartWorker) -> None:
    async with EvaluationQueue(service.url, patience=IMPATIENT) as queue:
        with pytest.raises(NoDevice, match="names no device"):
            await queue.submit(echo_request(), device="gpu0")
        with pytest.raises(NoWorker, match="cuda:0"):
            await queue.submit(echo_request(), device="cuda:0")
        start_worker(service, name="gpu", device="cuda:0")
        await asyncio.sleep(0.6)
        reply = await (await queue.submit(echo_request(), device="cuda:0"))
        assert reply.worker == "gpu"
        with pytest.raises(NoWorker):
            await queue.submit(echo_request(), device="cuda:1")
        handle = await queue.submit(echo_request())
        assert handle.queue == "eval.cuda", "auto is a GPU where there is one"
        assert (await handle).worker == "gpu"
        assert (await (await queue.submit(echo_request(), device="cpu"))).worker == "w1"
        assert [card.device for card in await queue.workers()] == ["cpu", "cuda:0"]


@pytest.mark.slow
async def test_submit_waits_for_a_worker_that_is_starting(broker: Broker, start_worker: StartWorker) -> None:
    async with EvaluationQueue(broker.url) as queue:
        task = asyncio.create_task(queue.evaluate(echo_request("early")))
        await asyncio.to_thread(start_worker, broker)
        assert (await task).stdout == "early"


async def test_no_broker_is_said_at_once(broker: Broker) -> None:
    with pytest.raises(NoBroker, match=r"redis://127\.0\.0\.1:1/0 does not answer"):
        async with EvaluationQueue("redis://127.0.0.1:1/0", patience=IMPATIENT):
            pass
    with pytest.raises(NoBroker, match="password") as caught:
        async with EvaluationQueue(broker.url.replace("secret", "wr0ng"), patience=IMPATIENT):
            pass
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(NoBroker, match="DRKQ_BROKER_URL"):
        EvaluationQueue(Settings())
    with pytest.raises(BadSettings, match="amqp"):
        EvaluationQueue("amqp://localhost")


@pytest.mark.slow
async def test_a_broker_that_goes_for_good_fails_everybody(broker: Broker, start_worker: StartWorker) -> None:
    start_worker(broker)
    patience = Patience(broker_s=0.5)
    async with EvaluationQueue(broker.url, patience=patience) as queue:
        handle = await queue.submit(echo_request(sleep=30))
        broker.stop()
        with pytest.raises(NoBroker):
            await handle.reply(PATIENT_S)
        with pytest.raises(NoBroker):
            await queue.evaluate(echo_request(), timeout_s=PATIENT_S)


@pytest.mark.slow
@pytest.mark.parametrize("given_up", [True, False])
async def test_a_queue_that_nobody_serves_any_more_fails(
    broker: Broker, start_worker: StartWorker, given_up: bool
) -> None:
    """Both what waits and what the last worker was at; with its reason, if somebody knows it."""
    worker = start_worker(broker, lease_s=0.1)
    patience = Patience(look_s=0.2, gone_s=60 if given_up else 0.5)
    async with EvaluationQueue(broker.url, patience=patience) as queue:
        busy = await queue.submit(echo_request(sleep=60))
        waiting = await queue.submit(echo_request())
        await asyncio.to_thread(wait_until, lambda: busy.id in _starts(broker), "the first one has started")
        kill_tree(worker)
        with broker.client() as client:
            withdraw(client, "w1")
            if given_up:
                give_up(client, queue_names(socket.gethostname(), "cpu"), "The device melted.")
        for handle in (waiting, busy):
            with pytest.raises(NoWorker, match="melted" if given_up else r"eval\.cpu"):
                await handle.reply(PATIENT_S)
    start_worker(broker, name="w2")
    async with EvaluationQueue(broker.url, patience=patience) as queue:
        assert (await queue.evaluate(echo_request("back"), timeout_s=PATIENT_S)).stdout == "back"


@pytest.mark.slow
async def test_tcp_urls(start_worker: StartWorker, unused_tcp_port: int) -> None:
    with own_broker("--port", str(unused_tcp_port), "--bind", "127.0.0.1") as broker:
        broker.url = f"redis://:secret@127.0.0.1:{unused_tcp_port}/0"
        start_worker(broker)
        async with EvaluationQueue(broker.url) as queue:
            assert (await queue.evaluate(echo_request("tcp"))).stdout == "tcp"
