"""Under load: broker and database restarted, the store backed up, restored elsewhere and used; each ends once."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drkernel_q.local.process import tether
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.watch import Patience
from drkernel_q.store import Store
from drkernel_q.store.backup import back_up, restore
from tests.need import PATIENT_S
from tests.queue.chaos import each_once, ends, nothing_left_in
from tests.queue.conftest import Broker, StartWorker, own_broker, wait_until
from tests.queue.requests import echo_request
from tests.services import Postgres

pytestmark = [pytest.mark.chaos, pytest.mark.redis, pytest.mark.postgres]
EAGER = Patience(look_s=1.0, lost_s=2.0)
REQUESTS = 90


@contextmanager
def persister(broker: Broker, url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `drkq persist` for the length of the block, and let it finish the batch in hand."""
    process = subprocess.Popen(
        [sys.executable, "-m", "drkernel_q", "persist"],
        env=os.environ | {"DRKQ_BROKER_URL": broker.url, "DRKQ_STORE_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=tether(signal.SIGKILL),  # noqa: PLW1509 - one prctl, no locks
    )
    try:
        yield process
        process.terminate()
        assert process.wait(PATIENT_S) == 0
    finally:
        process.kill()
        process.wait()


async def test_nothing_is_lost_or_doubled(
    start_worker: StartWorker, postgres: Postgres, postgres_template: str, tmp_path: Path
) -> None:
    first_url = postgres.url(postgres.create(postgres_template))
    second_url = f"sqlite:///{tmp_path / 'second.sqlite'}"
    requests = [echo_request(str(number), sleep=0.1) for number in range(REQUESTS)]
    with (
        own_broker("--appendonly", "yes") as broker,
        Store.open(first_url) as first,
        Store.open(second_url) as second,
    ):
        for name in ("w1", "w2"):
            start_worker(broker, name=name, lease_s=5)
        async with EvaluationQueue(broker.url, patience=EAGER) as queue:
            handles = [await queue.submit(request) for request in requests]

            async def answered(count: int) -> None:
                for handle in handles[:count]:
                    await handle.reply(PATIENT_S)

            with persister(broker, first_url) as process:
                # Whoever starts while there is no broker says so and ends.
                await asyncio.to_thread(wait_until, lambda: ends(first), "it writes", process)
                await answered(20)
                broker.stop()
                await asyncio.to_thread(broker.start)
                await answered(40)
                postgres.stop()
                await answered(60)
                postgres.start()  # not in a thread, with which it would end
                await asyncio.to_thread(wait_until, lambda: len(ends(first)) >= 30, "it writes again", process)
                live = await asyncio.to_thread(back_up, first, tmp_path / "live.sqlite")
                assert 30 <= live["evaluations"] == live["attempts"] == live["kernels"]
            back_up(first, tmp_path / "last.sqlite")
            await asyncio.to_thread(restore, tmp_path / "last.sqlite", second)
            with persister(broker, second_url):
                handles += [await queue.submit(echo_request(str(number))) for number in range(REQUESTS, REQUESTS + 5)]
                replies = [await handle.reply(PATIENT_S) for handle in handles]
                await asyncio.to_thread(wait_until, lambda: len(ends(second)) == len(handles), "all is written")
        found = [reply.evaluation.stdout for reply in replies if reply.evaluation]
        assert found == [str(number) for number in range(REQUESTS + 5)]
        each_once(second, {reply.id: "correct" for reply in replies})
        assert {reply.id: second.find(reply.id) for reply in replies} == {reply.id: reply for reply in replies}
        nothing_left_in(broker)
