"""What was accepted is judged, whatever becomes of the gateway: it ends, or is killed, and starts again."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from drkernel_q.errors import NoBroker
from drkernel_q.gateway.promises import Promises
from drkernel_q.gateway.submission import Submission
from drkernel_q.queue import keys
from drkernel_q.queue.connection import connect_async
from drkernel_q.store import Store
from tests.gateway.conftest import gateway_on
from tests.gateway.test_evaluations import order
from tests.need import PATIENT_S
from tests.queue.conftest import Broker, StartWorker, kill_tree, own_broker, wait_until
from tests.values import a_request

pytestmark = [pytest.mark.redis, pytest.mark.slow]


def post(client: httpx2.Client, count: int, sleep: float) -> list[str]:
    """Submit orders that answer with their numbers; return their ids."""
    orders = [order(str(number), order={"sleep": sleep}) for number in range(count)]
    accepted = client.post("/v1/batches", json={"evaluations": orders})
    assert accepted.status_code == 202, accepted.text
    return [each["id"] for each in accepted.json()["evaluations"]]


def replies(client: httpx2.Client, ids: list[str]) -> list[Any]:
    answers = [client.get(f"/v1/evaluations/{each}", params={"wait_s": 30}, timeout=40).json() for each in ids]
    return [answer["reply"]["evaluation"]["stdout"] for answer in answers]


def test_a_gateway_that_ends_goes_on_where_it_was(service: Broker, tmp_path: Path) -> None:
    with gateway_on(service, tmp_path) as served, served.client("ann") as ann:
        ids = post(ann, 20, 0.02)
    with service.client() as redis:
        left = redis.hlen(keys.promises(tmp_path.name))
        assert left > 0
        with gateway_on(service, tmp_path) as served, served.client("ann") as ann, served.client("bob") as bob:
            late = [each for each in ids if ann.get(f"/v1/evaluations/{each}").status_code == 200]
            assert len(late) == left
            assert replies(ann, late) == [str(ids.index(each)) for each in late]
            assert bob.get(f"/v1/evaluations/{late[0]}").status_code == 404
            given_up = post(ann, 3, 30)
            for each in given_up:
                ann.delete(f"/v1/evaluations/{each}")
        assert redis.hlen(keys.promises(tmp_path.name)) == 0


@pytest.mark.slow
def test_without_the_broker_nothing_is_accepted_and_nothing_lost(tmp_path: Path, start_worker: StartWorker) -> None:
    with own_broker("--appendonly", "yes") as broker:
        start_worker(broker)
        with gateway_on(broker, tmp_path) as served, served.client("ann") as ann:
            ids = post(ann, 4, 0.2)
            broker.stop()
            answer = ann.post("/v1/evaluations", json=order())
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
            broker.start()
            assert replies(ann, ids) == list("0123")
            assert len(ann.get("/v1/evaluations", params={"open": False}).json()["evaluations"]) == 4


async def test_orders_of_another_release_are_passed_over(broker: Broker) -> None:
    async with connect_async(broker.url) as redis:
        promises = Promises(redis, "mine")
        first, second = (Submission("ann", a_request(), "cpu") for _ in range(2))
        await promises.keep([first, second])
        await redis.hset(keys.promises("mine"), "old", '{"other": 1}')  # type: ignore[misc]
        assert {each.request.id for each in await promises.left()} == {first.id, second.id}
        async with promises.running():
            promises.fulfil(first)
        assert [each.request.id for each in await promises.left()] == [second.id]
        broker.stop()
        with pytest.raises(NoBroker):
            await promises.keep([first])


@contextmanager
def process(broker: Broker, folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """`drkq serve` as it is started, and its URL."""
    (folder / "tokens").write_text("ann ann-has-a-long-token\n")
    environment = os.environ | {"DRKQ_BROKER_URL": broker.url, "DRKQ_STORE_URL": f"sqlite:///{folder / 'drkq.sqlite'}"}
    command = [sys.executable, "-m", "drkernel_q", "serve", "--port", "0", "--tokens", str(folder / "tokens")]
    log = folder / "serve.log"
    with log.open("wb") as file:
        running = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_until(lambda: "Serving on" in log.read_text(), "the gateway serves", running)
        found = re.search(r"Serving on (\S+)\.", log.read_text())
        assert found
        yield running, found[1]
    finally:
        kill_tree(running)


@pytest.mark.slow
def test_a_gateway_that_is_killed_goes_on_where_it_was(tmp_path: Path, start_worker: StartWorker) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'drkq.sqlite'}") as store:
        store.upgrade()
    headers = {"Authorization": "Bearer ann-has-a-long-token"}
    with own_broker() as broker:
        start_worker(broker)
        with process(broker, tmp_path) as (first, url), httpx2.Client(base_url=url, headers=headers) as ann:
            ids = post(ann, 5, 0.3)
            first.send_signal(signal.SIGKILL)
        with process(broker, tmp_path) as (second, url):
            with httpx2.Client(base_url=url, headers=headers) as ann:
                assert replies(ann, ids) == list(map(str, range(5)))
            second.send_signal(signal.SIGTERM)
            assert second.wait(PATIENT_S) == 0
        assert "has-a-long-token" not in (tmp_path / "serve.log").read_text()
