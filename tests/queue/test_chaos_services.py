"""A broker that forgets, a disk that is full: each request still ends once in the store."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drkernel_q.queue import keys
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.watch import Patience
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.queue.chaos import drain, each_once, ends, nothing_left_in
from tests.queue.conftest import Broker, StartWorker, own_broker, wait_until
from tests.queue.requests import echo_request

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.redis]
EAGER = Patience(look_s=0.3, lost_s=0.5)


async def test_a_broker_that_forgets_everything_twice(broker: Broker, start_worker: StartWorker, store: Store) -> None:
    """Replies that it has forgotten before they were stored are recorded again by the client that got them."""
    start_worker(broker)
    requests = [echo_request(str(number), sleep=0.05) for number in range(20)]
    async with EvaluationQueue(broker.url, patience=EAGER) as queue:
        handles = [await queue.submit(request) for request in requests]
        for done in (4, 12):
            await handles[done].reply(PATIENT_S)
            broker.stop()
            await asyncio.to_thread(broker.start)
        found = [(await handle.evaluation(40)).stdout for handle in handles]
        assert found == [str(number) for number in range(20)]
        await asyncio.to_thread(wait_until, lambda: _stored(broker, store) == 20, "all of them are stored")
    each_once(store, {request.id: "correct" for request in requests})
    nothing_left_in(broker)


def _stored(broker: Broker, store: Store) -> int:
    drain(broker, store)
    return len(ends(store))


async def test_a_disk_that_is_full_for_a_while(
    start_worker: StartWorker, sqlite_template: Path, tmp_path: Path
) -> None:
    """The persister's files may not grow: nothing is written, nothing lost, and it goes on by itself."""
    path = tmp_path / "drkq.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with own_broker() as broker, Store.open(f"sqlite:///{path}") as store:
        start_worker(broker)
        environment = os.environ | {"DRKQ_BROKER_URL": broker.url, "DRKQ_STORE_URL": f"sqlite:///{path}"}
        command = [sys.executable, "-m", "drkernel_q", "persist"]
        with (tmp_path / "log").open("wb") as log:
            persister = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: _has_group(broker), "it reads", persister)
            resource.prlimit(persister.pid, resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY))
            async with EvaluationQueue(broker.url) as queue:
                requests = [echo_request(padding="x" * 20_000) for _ in range(30)]
                await asyncio.gather(*[(await queue.submit(request)).reply(PATIENT_S) for request in requests])
            wait_until(lambda: b"Trying again" in (tmp_path / "log").read_bytes(), "it fails", persister)
            assert ends(store) == {}
            with broker.client() as client:
                assert client.xlen(keys.RESULTS) == 30
            resource.prlimit(persister.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            wait_until(lambda: len(ends(store)) == 30, "all is written", persister)
            persister.send_signal(signal.SIGTERM)
            assert persister.wait(PATIENT_S) == 0
        finally:
            persister.kill()
            persister.wait()
        each_once(store, {request.id: "correct" for request in requests})
        nothing_left_in(broker)


def _has_group(broker: Broker) -> bool:
    with broker.client() as client:
        return bool(client.exists(keys.RESULTS)) and bool(client.xinfo_groups(keys.RESULTS))
