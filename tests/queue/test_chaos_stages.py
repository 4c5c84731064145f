"""kill -9 of every process that has a part in an evaluation, one after the other, while a real worker judges."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from drkernel_q.evaluation import Outcome
from drkernel_q.queue import keys
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.watch import Patience
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.queue.chaos import drain, each_once, not_there, nothing_left_in, processes_with
from tests.queue.conftest import wait_until
from tests.queue.real_worker import (
    Service,
    alive,
    descendants,
    has_source,
    in_private_folders,
    running,
    sleeper,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.redis]
#: The client does nothing of its own: the workers must see to it.
IDLE = Patience(look_s=1000)
SECONDS = 1.5


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("chaos") / "drkq.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    with Store.open(f"sqlite:///{path}") as store:
        yield store


@pytest.fixture
async def queue(service: Service) -> AsyncIterator[EvaluationQueue]:
    async with EvaluationQueue(service.broker.url, patience=IDLE) as queue:
        yield queue


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def candidate(service: Service) -> int:
    folders = in_private_folders(service.worker.pid)
    return next(pid for pid, folder in folders.items() if Path(folder, "candidate.py").exists())


def zygote(service: Service) -> int:
    (pid,) = (pid for pid in descendants(service.worker.pid) if parent(pid) == service.card().pid)
    return pid


def judge(service: Service) -> int:
    inside = in_private_folders(service.worker.pid)
    mother = zygote(service)
    return next(pid for pid in descendants(mother) if parent(pid) == mother and pid not in inside)


def pool_child(service: Service) -> int:
    return service.card().pid


def celery(service: Service) -> int:
    return parent(service.card().pid)


VICTIMS: dict[Callable[[Service], int], tuple[Outcome, int]] = {
    candidate: (Outcome.OUT_OF_MEMORY, 1),  # who else but the kernel, short of memory, would kill one like that?
    judge: (Outcome.CORRECT, 2),
    zygote: (Outcome.CORRECT, 2),
    pool_child: (Outcome.CORRECT, 2),
    celery: (Outcome.CORRECT, 2),
}


@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: victim.__name__)
async def test_killed_while_a_candidate_runs(
    service: Service, queue: EvaluationQueue, store: Store, victim: Callable[[Service], int]
) -> None:
    handle = await queue.submit(sleeper(SECONDS))
    await until(lambda: has_source(service.worker.pid), "the candidate runs")
    before = service.card()
    family = in_private_folders(service.worker.pid)
    pid = victim(service)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive([pid]), "it is dead")
    reply = await handle.reply(PATIENT_S)
    outcome, attempt = VICTIMS[victim]
    assert reply.evaluation is not None, reply.failure
    assert (reply.evaluation.outcome, reply.attempt) == (outcome, attempt)
    await until(lambda: not alive(family), "the candidates of then, with their daemons, have ended")
    await until(lambda: not_there(family.values()), "their folders are gone")
    await until(lambda: service.card().request_id is None, "the worker waits for more")
    assert service.card().id == before.id
    await asyncio.to_thread(drain, service.broker, store)
    each_once(store, {handle.id: outcome.value})


async def test_the_supervisor_killed_and_another_worker_goes_on(
    service: Service, queue: EvaluationQueue, store: Store
) -> None:
    """Everything below it dies with it; its lock is free at once, and its claim when the lease has ended."""
    handle = await queue.submit(sleeper(SECONDS))
    await until(lambda: has_source(service.worker.pid), "the candidate runs")
    family = descendants(service.worker.pid)
    folders = set(in_private_folders(service.worker.pid).values())
    start = time.monotonic()
    service.worker.kill()
    await until(lambda: not alive(family), "all that it started has ended")
    await until(lambda: not_there(folders), "the folders of the candidates are gone")
    assert time.monotonic() - start < 10
    service.worker.wait()
    await asyncio.to_thread(service.start_worker)
    with service.broker.client() as client:  # instead of half a minute of waiting
        client.hset(keys.claim(handle.id), "expires_ms", 1)
        client.zadd(keys.LEASES, {handle.id: 1})
    reply = await handle.reply(PATIENT_S)
    assert reply.evaluation is not None, reply.failure
    assert (reply.evaluation.outcome, reply.attempt) == (Outcome.CORRECT, 2)
    assert reply.worker.endswith(f"-{service.worker.pid}")


async def test_nothing_is_left_when_it_is_over(service: Service, store: Store) -> None:
    await asyncio.to_thread(drain, service.broker, store)
    nothing_left_in(service.broker)
    service.worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(service.worker.wait, PATIENT_S) == 0
    mark = f"DRKQ_LOCK_DIR={service.environment['DRKQ_LOCK_DIR']}"
    wait_until(lambda: not processes_with(mark), "no process is left")
