"""Two hundred requests, a fifth of them crashing, while everything that can be killed or delivered twice is."""

import asyncio
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.queue import keys
from drkernel_q.queue.app import EVALUATE, celery_app
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.desk import PASS_ON_S
from drkernel_q.queue.message import message
from drkernel_q.queue.watch import Patience
from drkernel_q.request import Priority
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.queue.chaos import Stores, drain, each_once, ends, nothing_left_in, processes_with
from tests.queue.conftest import Broker, StartWorker, kill_tree, own_broker, persisting, wait_until
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request
from tests.services import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.redis, pytest.mark.postgres]
EAGER = Patience(look_s=1.0, lost_s=2.0)
DAY_S = 86_400.0

#: Submits what its standard input holds, one JSON a line, and is killed before any answer.
DOOMED = """
import asyncio, os, signal, sys
from drkernel_q.evaluation import EvaluationRequest
from drkernel_q.queue.client import EvaluationQueue

async def main():
    async with EvaluationQueue(sys.argv[1]) as queue:
        for line in sys.stdin:
            await queue.submit(EvaluationRequest.model_validate_json(line))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def stores(sqlite_template: Path, tmp_path: Path, postgres: Postgres, postgres_template: str) -> Iterator[Stores]:
    shutil.copy(sqlite_template, tmp_path / "drkq.sqlite")
    urls = [f"sqlite:///{tmp_path / 'drkq.sqlite'}", postgres.url(postgres.create(postgres_template))]
    opened = [Store.open(url) for url in urls]
    yield Stores(opened)
    for store in opened:
        store.close()


def mixed() -> tuple[list[EvaluationRequest], dict[str, str]]:
    """Make the requests, and say how each must end."""
    requests: list[EvaluationRequest] = []
    expected: dict[str, str] = {}

    def add(end: str, count: int, **order: Any) -> None:
        for _ in range(count):
            requests.append(echo_request(**order))
            expected[requests[-1].id] = end

    add("correct", 140)
    add("correct", 10, own=uuid.uuid4().hex)  # all the same
    add("crashed", 38, outcome="crashed")
    add("crashed", 1, die=[1, 2])
    add("correct", 1, die=[1])
    add("correct", 3, fail="infrastructure", fail_on=[1])
    add("infrastructure", 2, fail="infrastructure")
    add("problem", 4, fail="problem")
    add("deadline", 1, fail="deadline")
    return [each.model_copy(update={"priority": list(Priority)[n % 3]}) for n, each in enumerate(requests)], expected


def owner_of(broker: Broker, request_id: str) -> str | None:
    with broker.client() as client:
        found: Any = client.hget(keys.claim(request_id), "owner")
    return found


async def test_two_hundred_requests_each_end_once(stores: Stores, tmp_path: Path, start_worker: StartWorker) -> None:
    requests, expected = mixed()
    assert len(requests) == 200
    with own_broker("--appendonly", "yes") as broker, persisting(broker, stores):  # type: ignore[arg-type]
        # The second one's clock is a day ahead: it takes every message in hand for abandoned.
        clocks = {"w1": 0.0, "w2": DAY_S}
        trees = {name: start_worker(broker, name=name, lease_s=3, clock_s=clock) for name, clock in clocks.items()}
        doomed, mine = requests[:10], requests[10:]
        lines = "\n".join(request.model_dump_json(round_trip=True) for request in doomed)
        client = subprocess.run([sys.executable, "-c", DOOMED, broker.url], input=lines, text=True, check=False)
        assert client.returncode == -signal.SIGKILL
        async with EvaluationQueue(broker.url, patience=EAGER) as queue:
            held = await queue.submit(echo_request("held", sleep=1.0))
            expected[held.id] = "correct"
            replies = asyncio.gather(
                *[(await queue.submit(request)).reply(PATIENT_S) for request in mine], held.reply(PATIENT_S)
            )
            with broker.client() as redis:
                app = celery_app(broker.url)
                for request in mine[:30:3]:  # delivered twice
                    again = message(app, EVALUATE, request, list_name=f"eval.cpu/{request.priority.value}/1")
                    redis.lpush(again.key, again.text)
            await asyncio.to_thread(wait_until, lambda: owner_of(broker, held.id), "somebody has it")
            name = str(owner_of(broker, held.id))
            kill_tree(trees.pop(name))
            trees["w3"] = await asyncio.to_thread(start_worker, broker, name="w3", lease_s=3)
            broker.stop()
            await asyncio.to_thread(broker.start)
            found = {reply.id: reply for reply in await replies}
        wait_until(lambda: set(expected) <= set(ends(stores.stores[0])), "what the killed client asked for has ended")
        drain(broker, stores)
        for store in stores.stores:
            each_once(store, expected)
            assert {name: store.find(name) for name in found} == found, "the clients were told what is stored"
        # Who has passed on a request acknowledges it after a pause; told to leave before, it puts it back once more.
        await asyncio.sleep(2 * PASS_ON_S)
        for tree in trees.values():
            tree.terminate()
        assert [tree.wait(PATIENT_S) for tree in trees.values()] == [0] * len(trees)
        wait_until(lambda: not processes_with(f"DRKQ_BROKER_URL={broker.url}"), "no process is left")
        nothing_left_in(broker)
        with broker.client() as redis:
            starts: Any = redis.lrange(STARTS, 0, -1)
    same = {request.id for request in requests[140:150]}
    assert len([row for row in starts if row.split()[0] in same]) <= 3, "one evaluation for all who ask for the same"
