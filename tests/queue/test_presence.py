"""What a supervisor shows of its worker: alive, draining, resting, and deaf when it takes nothing."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from redis import Redis

from drkernel_q.queue import keys
from drkernel_q.queue.app import queue_names
from drkernel_q.queue.registry import WorkerCard, WorkerState, announce, workers
from drkernel_q.queue.routing import route, serves
from drkernel_q.queue.turns import list_names
from drkernel_q.settings import load_settings
from tests.need import PATIENT_S
from tests.queue.conftest import own_broker
from workers.presence import DEAF_S, LOOK_S, Presence
from workers.supervisor import QUIT_S, Supervisor

pytestmark = pytest.mark.redis
QUEUES = queue_names("here", "cpu")


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with own_broker() as broker, broker.client() as client:
        yield client


@pytest.fixture
def redis(server: Redis) -> Redis:
    server.flushall()
    return server


@pytest.fixture
def presence(redis: Redis) -> Presence:
    return Presence(redis, ["w"], list_names(QUEUES))


def card(state: WorkerState = WorkerState.IDLE, last_progress: str = "1") -> WorkerCard:
    return WorkerCard(
        id="w",
        host="here",
        device="cpu",
        device_name="x",
        device_kind="cpu",
        queues=QUEUES,
        pid=os.getpid(),
        state=state,
        started_at="0",
        last_progress=last_progress,
    )


def test_the_card_is_kept_and_put_back(redis: Redis, presence: Presence) -> None:
    presence.look(0.0)
    assert workers(redis) == [], "the pool child is not ready"
    announce(redis, card(), ttl_s=0.5)
    presence.look(1.0)
    assert redis.pttl(keys.worker("w")) > 10_000
    redis.flushall()
    presence.look(2.0)
    assert workers(redis) == [card()]


def test_a_worker_that_is_told_to_leave_gets_nothing_new(redis: Redis, presence: Presence) -> None:
    announce(redis, card(WorkerState.BUSY))
    assert serves(workers(redis), "eval.cpu")
    presence.draining = True
    presence.look(0.0)
    (shown,) = workers(redis)
    assert shown.state is WorkerState.DRAINING
    assert route([shown], "auto") is None
    assert not serves([shown], "eval.cpu"), "who waits is told when nobody else comes"
    announce(redis, card(WorkerState.IDLE, "2"))
    presence.look(1.0)
    assert workers(redis)[0].state is WorkerState.DRAINING


def test_a_worker_that_takes_nothing_is_deaf_after_a_while(redis: Redis, presence: Presence) -> None:
    announce(redis, card())
    for now in range(0, int(2 * DEAF_S), int(LOOK_S)):
        presence.look(now)
    assert not presence.deaf.is_set(), "there was nothing to take"
    redis.lpush(f"drkq:{list_names(QUEUES)[7]}", "a message")
    presence.look(1000.0)
    presence.look(1000.0 + DEAF_S - 1)
    announce(redis, card(last_progress="2"))
    presence.look(1000.0 + DEAF_S)
    presence.look(1000.0 + 2 * DEAF_S - 1)
    assert not presence.deaf.is_set(), "it did something meanwhile"
    announce(redis, card(WorkerState.BUSY, "2"))
    presence.look(1000.0 + 2 * DEAF_S)
    announce(redis, card(last_progress="2"))
    presence.look(2000.0)
    presence.look(2000.0 + DEAF_S)
    assert presence.deaf.is_set()
    presence.deaf.clear()
    presence.look(2000.0 + DEAF_S + LOOK_S)
    assert not presence.deaf.is_set(), "once is enough"


def test_what_rests_is_shown_as_it_is(redis: Redis, presence: Presence) -> None:
    announce(redis, card())
    presence.look(0.0)
    presence.resting = card(WorkerState.QUARANTINED).model_copy(update={"queues": (), "reason": "it is ill"})
    presence.look(5.0)
    assert workers(redis) == [presence.resting]
    presence.resting = None
    redis.delete(keys.worker("w"))
    presence.look(10.0)
    assert workers(redis) == [], "the card of before is not put back"


def test_a_celery_that_is_deaf_or_dawdles_is_ended() -> None:
    """The supervisor's hand on a real process in the place of Celery, which cannot be told to be either."""
    with own_broker() as broker:
        keeper = Supervisor(load_settings(broker_url=broker.url), "cpu", lambda text: None)
        for reason, number in (("deaf", signal.SIGKILL), ("late", signal.SIGQUIT), ("stuck", signal.SIGKILL)):
            with subprocess.Popen(["sleep", "60"]) as child:
                keeper._hurry(child)
                assert child.poll() is None
                if reason == "deaf":
                    keeper.presence.deaf.set()
                else:
                    keeper._leave_by = time.monotonic() - (QUIT_S if reason == "stuck" else 0)
                keeper._hurry(child)
                assert child.wait(PATIENT_S) == -number
                keeper._leave_by = float("inf")
        assert not keeper.presence.deaf.is_set()
        keeper.lock.close()
