"""A real worker with two lanes on the cpu: both judge at the same time, one is timed at a time."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drkernel_q.evaluation import Outcome
from drkernel_q.lock import cpu_identity
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.registry import WorkerState
from tests.need import PATIENT_S
from tests.queue.real_worker import (
    Service,
    alive,
    descendants,
    in_private_folders,
    running,
    sleeper,
    softmax_request,
    state,
    until,
)
from workers.gate import Gate

pytestmark = [pytest.mark.slow, pytest.mark.redis]

#: Finds that there is no memory.
HUNGRY = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        raise torch.OutOfMemoryError("CUDA out of memory.")
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running(lanes=2) as service:
        yield service


@pytest.fixture
async def queue(service: Service) -> AsyncIterator[EvaluationQueue]:
    async with EvaluationQueue(service.broker.url) as queue:
        yield queue


async def test_each_lane_has_a_card_and_takes_its_share(service: Service, queue: EvaluationQueue) -> None:
    names = {card.id for card in service.cards()}
    assert names == {f"{card.id.partition('.')[0]}.{number}" for card in service.cards() for number in (0, 1)}
    sleepers = [asyncio.ensure_future(queue.evaluate(sleeper(2.0))) for _ in range(2)]
    busy = lambda: [card.state for card in service.cards()] == [WorkerState.BUSY] * 2  # noqa: E731
    await until(busy, "both lanes are at it")
    assert [each.outcome for each in await asyncio.gather(*sleepers)] == [Outcome.CORRECT] * 2


async def test_what_is_timed_is_timed_alone_and_right(queue: EvaluationQueue) -> None:
    evaluations = await asyncio.gather(*(queue.evaluate(softmax_request()) for _ in range(4)))
    assert all(each.honest_and_correct for each in evaluations)
    assert any(each.durations_s["waiting"] > 0 for each in evaluations)


async def test_checks_give_way_between_requests(service: Service, queue: EvaluationQueue) -> None:
    gate = Gate(Path(service.environment["DRKQ_LOCK_DIR"]), cpu_identity())
    checks = asyncio.ensure_future(queue.evaluate(sleeper(0.4, trials=5)))

    def they_stand_still() -> bool:
        with gate.alone():
            time.sleep(0.05)
            return any(state(pid) == "T" for pid in in_private_folders(service.worker.pid))

    await until(they_stand_still, "the device can be had while a kernel is checked")
    assert not checks.done()
    evaluation = await checks
    assert evaluation.outcome is Outcome.CORRECT
    assert (
        0 < evaluation.durations_s["waiting"] < evaluation.durations_s["total"] - evaluation.durations_s["correctness"]
    )


async def test_what_ran_out_of_memory_is_judged_again_when_no_other_lane_holds_any(queue: EvaluationQueue) -> None:
    other = asyncio.ensure_future(queue.evaluate(sleeper(1.5, trials=5)))  # it gives way between them
    await asyncio.sleep(1.0)
    hungry = asyncio.ensure_future(queue.evaluate(softmax_request(HUNGRY)))
    done, _ = await asyncio.wait([other, hungry], timeout=PATIENT_S, return_when=asyncio.FIRST_COMPLETED)
    assert done == {other}, "its answer waits for the other lane"
    assert (await hungry).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.chaos
async def test_a_lane_that_is_killed_costs_the_other_nothing(service: Service, queue: EvaluationQueue) -> None:
    await until(lambda: all(card.state is WorkerState.IDLE for card in service.cards()), "nothing is at hand")
    sleepers = [asyncio.ensure_future(queue.evaluate(sleeper(3.0))) for _ in range(2)]
    await until(lambda: all(card.state is WorkerState.BUSY for card in service.cards()), "both lanes are at it")
    killed = service.cards()[0].pid
    os.kill(killed, signal.SIGKILL)
    done, pending = await asyncio.wait(sleepers, timeout=PATIENT_S, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().outcome for task in done] == [Outcome.CORRECT]
    for task in pending:  # a lease runs out before what was lost is delivered again; the tests of chaos wait for that
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    await until(lambda: {card.pid for card in service.cards()}.isdisjoint({killed}), "another lane takes its place")


async def test_sigterm_withdraws_all_lanes_and_leaves_nothing(service: Service) -> None:
    family = descendants(service.worker.pid)
    service.worker.send_signal(signal.SIGTERM)
    await asyncio.to_thread(service.worker.wait, PATIENT_S)
    assert service.cards() == []
    await until(lambda: not alive(family), "all that the worker started has ended")
