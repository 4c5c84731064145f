"""One evaluation for all who ask for the same thing, now or later; none for those who want their own."""

import asyncio
import uuid
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from drkernel_q.errors import Cancelled, InfrastructureFailure, NoStore
from drkernel_q.evaluation import EvaluationRequest, Reply
from drkernel_q.persist import Persister
from drkernel_q.queue import keys
from drkernel_q.queue.archive import LIFETIME
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.watch import Patience
from drkernel_q.request import Priority
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, StartWorker, kill_tree, wait_until
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request
from tests.values import H200, a_reply, a_request, an_evaluation

pytestmark = pytest.mark.redis
EAGER = Patience(look_s=0.3, lost_s=0.5)


def alike(count: int, echo: str = "", **order: Any) -> list[EvaluationRequest]:
    """Make requests for the same thing, which nobody has asked for before."""
    own = uuid.uuid4().hex
    return [echo_request(echo, own=own, **order) for _ in range(count)]


def starts(broker: Broker) -> list[str]:
    with broker.client() as client:
        rows: Any = client.lrange(STARTS, 0, -1)
        return [row.split()[0] for row in rows]


def stored(broker: Broker, store: Store) -> None:
    with broker.client() as client:
        Persister(client, store).drain()


async def started(broker: Broker, request_id: str) -> None:
    await asyncio.to_thread(wait_until, lambda: request_id in starts(broker), "the evaluation has started")


@pytest.mark.slow
async def test_two_clients_at_the_same_time_cost_one_evaluation(service: Broker, store: Store) -> None:
    first, *others = alike(4, "shared", sleep=0.4)
    async with EvaluationQueue(service.url) as one, EvaluationQueue(service.url) as two:
        leader = await one.submit(first)
        await started(service, first.id)
        handles = [await queue.submit(request) for queue, request in zip([two, one, two], others, strict=True)]
        replies = [await handle.reply(PATIENT_S) for handle in [leader, *handles]]
    assert [request.id for request in [first, *others] if request.id in starts(service)] == [first.id]
    assert [reply.id for reply in replies] == [first.id, *(request.id for request in others)]
    assert [reply.measured_for for reply in replies] == [None, *[first.id] * 3]
    assert [reply.model_copy(update={"id": first.id, "measured_for": None}) for reply in replies] == replies[:1] * 4
    stored(service, store)
    assert [store.find(reply.id) for reply in replies] == replies, "each request has its own row in the store"


@pytest.mark.slow
async def test_a_later_one_is_answered_without_a_worker(broker: Broker, start_worker: StartWorker) -> None:
    worker = start_worker(broker)
    requests = alike(4, "kept")
    async with EvaluationQueue(broker.url) as queue:
        before = await (await queue.submit(requests[0]))
        kill_tree(worker)
        reply = await (await queue.submit(requests[1])).reply(PATIENT_S)
        assert (reply.cached, reply.measured_for) == (True, before.id)
        assert (reply.evaluation, reply.worker, reply.finished_at) == (
            before.evaluation,
            before.worker,
            before.finished_at,
        )
        fresh = await queue.submit(requests[2].model_copy(update={"fresh": True}))
        await asyncio.sleep(0.3)
        assert not fresh.done()
    async with EvaluationQueue(broker.url) as other:
        assert (await (await other.submit(requests[3])).reply(PATIENT_S)).measured_for == before.id


async def test_whoever_wants_its_own_gets_it_and_it_is_the_newest(service: Broker) -> None:
    *requests, last = alike(4, "fresh")
    requests[1:] = [request.model_copy(update={"fresh": True}) for request in requests[1:]]
    async with EvaluationQueue(service.url) as queue:
        replies = [await handle for handle in [await queue.submit(request) for request in requests]]
        assert not any(reply.cached for reply in replies)
        assert {request.id for request in requests} <= set(starts(service))
        later = await (await queue.submit(last))
        assert later.measured_for == requests[-1].id


@pytest.mark.slow
@pytest.mark.parametrize("order", [{"fail": "problem"}, {"outcome": "timeout"}, {"outcome": "crashed"}])
async def test_what_may_end_otherwise_next_time_is_shared_but_not_kept(service: Broker, order: dict[str, str]) -> None:
    first, second, third = alike(3, sleep=0.3, **order)
    async with EvaluationQueue(service.url) as queue:
        leader = await queue.submit(first)
        await started(service, first.id)
        follower = await queue.submit(second)
        assert (await follower.reply(PATIENT_S)).measured_for == first.id == (await leader).id
        await (await queue.submit(third))
    assert [name for name in starts(service) if name in {first.id, second.id, third.id}] == [first.id, third.id]


async def test_asking_for_more_time_is_not_the_same(service: Broker) -> None:
    """One that runs out of time would be no answer to whoever has more of it."""
    first, second = alike(2, sleep=0.2)
    second = second.model_copy(update={"deadline_s": second.deadline_s + 1})
    async with EvaluationQueue(service.url) as queue:
        handles = [await queue.submit(request) for request in (first, second)]
        replies = [await handle for handle in handles]
    assert first.id in starts(service)
    assert [reply.measured_for for reply in replies] == [None, first.id], "but if it does not, it is one"
    assert second.id not in starts(service)


@pytest.mark.slow
async def test_the_leader_may_leave_and_the_followers_too(service: Broker) -> None:
    async with EvaluationQueue(service.url) as one, EvaluationQueue(service.url) as two:
        first, second = alike(2, sleep=1.0)
        leader = await one.submit(first)
        await started(service, first.id)
        follower = await two.submit(second)
        leader.cancel()
        assert (await follower.reply(PATIENT_S)).measured_for == first.id
        # Now all of them leave: nobody wants it any more.
        first, second, again = alike(3, sleep=30)
        leader = await one.submit(first)
        await started(service, first.id)
        follower = await two.submit(second)
        follower.cancel()
        leader.cancel()
        with pytest.raises(Cancelled):
            await follower
        assert (await two.evaluate(echo_request("next"), timeout_s=PATIENT_S)).stdout == "next"
        # Who comes now is not tied to what was given up.
        handle = await two.submit(again)
        await started(service, again.id)
        handle.cancel()


@pytest.mark.slow
async def test_an_urgent_one_does_not_wait_behind_the_others(service: Broker) -> None:
    async with EvaluationQueue(service.url) as queue:
        blocker = await queue.submit(echo_request(sleep=0.5))
        await started(service, blocker.id)
        backlog = [await queue.submit(echo_request(sleep=0.3), priority=Priority.TRAINING) for _ in range(10)]
        slow, quick, joined = [
            await queue.submit(request, priority=priority)
            for request, priority in zip(
                alike(3), (Priority.TRAINING, Priority.INTERACTIVE, Priority.BACKFILL), strict=True
            )
        ]
        reply = await quick.reply(PATIENT_S)
        assert not reply.cached
        assert not all(handle.done() for handle in backlog)
        assert (await joined.reply(PATIENT_S)).measured_for == quick.id
        assert (await slow.reply(PATIENT_S)).measured_for == quick.id, "its own turn finds the answer there already"


@pytest.mark.slow
async def test_a_leader_whose_worker_dies_is_done_by_another(broker: Broker, start_worker: StartWorker) -> None:
    doomed = start_worker(broker, name="w1", lease_s=1)
    async with EvaluationQueue(broker.url, patience=EAGER) as one, EvaluationQueue(broker.url, patience=EAGER) as two:
        first, second = alike(2, sleep=1)
        leader = await one.submit(first)
        await started(broker, first.id)
        follower = await two.submit(second)
        kill_tree(doomed)
        await asyncio.to_thread(start_worker, broker, name="w2", lease_s=1)
        replies = [await handle.reply(PATIENT_S) for handle in (leader, follower)]
    assert [(reply.worker, reply.attempt) for reply in replies] == [("w2", 2)] * 2


@pytest.mark.slow
async def test_a_follower_outlives_a_broker_that_forgot_everything(broker: Broker, start_worker: StartWorker) -> None:
    start_worker(broker)
    one = EvaluationQueue(broker.url, patience=EAGER)
    async with EvaluationQueue(broker.url, patience=EAGER) as two:
        async with one:
            blocker = await two.submit(echo_request(sleep=0.5))
            await started(broker, blocker.id)
            first, second = alike(2, "orphan")
            await one.submit(first)
            follower = await two.submit(second)
            broker.stop()
        await asyncio.to_thread(broker.start)
        assert (await follower.evaluation(PATIENT_S)).stdout == "orphan"


class Shelf:
    """An archive that holds one reply at most, or cannot be read."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reply: Reply | None = None
        self.error = error
        self.asked: list[Collection[str]] = []

    def find(self, request_id: str) -> Reply | None:
        return self.reply if self.reply is not None and self.reply.id == request_id else None

    def find_content(self, content_keys: Collection[str], since: datetime) -> Reply | None:
        assert abs(datetime.now(UTC) - LIFETIME - since) < timedelta(minutes=1)
        self.asked.append(content_keys)
        if self.error is not None:
            raise self.error
        return None


async def test_the_store_answers_when_the_broker_has_forgotten(service: Broker, store: Store) -> None:
    requests = alike(3, "in the store")
    async with EvaluationQueue(service.url, archive=store) as queue:
        first = await (await queue.submit(requests[0]))
        stored(service, store)
        with service.client() as client:
            for key in [*client.scan_iter("drkq:content:*"), *client.scan_iter("drkq:r:*")]:
                client.delete(key)
        second = await (await queue.submit(requests[1])).reply(PATIENT_S)
        assert second == first.shared_with(requests[1].id)
        fresh = await (await queue.submit(requests[2].model_copy(update={"fresh": True})))
        assert not fresh.cached
    stored(service, store)
    assert store.find(requests[1].id) == second
    assert requests[1].id not in starts(service)


@pytest.mark.slow
async def test_a_lost_reply_is_found_in_the_store(broker: Broker, start_worker: StartWorker, store: Store) -> None:
    """The broker lost its memory after the reply was stored and before the client saw it."""
    worker = start_worker(broker)
    request = echo_request("once", sleep=0.3)
    async with EvaluationQueue(broker.url, archive=store, patience=EAGER) as queue:
        handle = await queue.submit(request)
        with broker.client() as client:
            client.delete(handle._pending.request.reply_to)
            wait_until(lambda: client.xlen(keys.RESULTS), "it is answered")
            stored(broker, store)
            client.flushall()
        kill_tree(worker)
        reply = await handle.reply(PATIENT_S)
        assert store.find(request.id) == reply


async def test_a_reply_that_expired_in_the_broker_is_found_in_the_store(service: Broker) -> None:
    """A client that was away for longer than the broker keeps replies."""
    shelf = Shelf()
    async with EvaluationQueue(service.url, archive=shelf, patience=EAGER) as queue:
        for known in (True, False):
            handle = await queue.submit(echo_request(sleep=1))
            shelf.reply = a_reply(a_request(id=handle.id), an_evaluation()) if known else None
            with service.client() as client:
                client.hset(keys.claim(handle.id), "finished", "1")
            if known:
                assert await handle.reply(PATIENT_S) == shelf.reply
            else:
                with pytest.raises(InfrastructureFailure, match="look in the store"):
                    await handle.reply(PATIENT_S)


async def test_a_store_that_cannot_be_read_is_not_in_the_way(service: Broker) -> None:
    shelf = Shelf(NoStore())
    async with EvaluationQueue(service.url, archive=shelf) as queue:
        assert (await queue.evaluate(echo_request("all the same"), timeout_s=PATIENT_S)).stdout == "all the same"
    assert len(shelf.asked) == 1
    assert len(shelf.asked[0]) == 1


async def test_facts_recorded_on_a_device_that_is_named_answer_on_any(service: Broker, store: Store) -> None:
    recorded = a_request("recorded")
    store.record(recorded, a_reply(recorded, an_evaluation(speedup=2.5)))
    async with EvaluationQueue(service.url, archive=store, recorded=H200) as queue:
        request = a_request("recorded")
        reply = await (await queue.submit(request)).reply(PATIENT_S)
        assert reply.cached
        assert reply.measured_for == recorded.id
        assert reply.evaluation is not None
        assert (reply.evaluation.environment.device_kind, reply.evaluation.speedup) == (H200, 2.5)
        judged_here = echo_request("not recorded")
        assert (await queue.evaluate(judged_here, timeout_s=PATIENT_S)).stdout == "not recorded"
    assert request.id not in starts(service)
