"""Turns alone: urgent work first, nothing starves, clients share; and the same through a real worker."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.scheduling import cycle_by_name

from drkernel_q.queue.app import celery_app
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.queue.turns import LANES, WEIGHTS, Turns, list_name, list_names, schedule
from drkernel_q.request import Priority
from tests.queue.conftest import Broker
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request

NAMES = list_names(["eval.cpu", "dev.box.cpu"])
PERIOD = sum(WEIGHTS.values())


def serve(backlog: Mapping[str, int], turns: Turns | None = None) -> list[str]:
    """Serve all messages as kombu does: one at a time, from the first list in order that has one."""
    turns = turns or Turns()
    turns.update(NAMES)
    left = dict(backlog)
    served = []
    while any(left.values()):
        name = next(name for name in turns.consume(len(NAMES)) if left.get(name))
        left[name] -= 1
        turns.rotate(name)
        served.append(name)
    return served


def test_kombu_takes_them() -> None:
    options = celery_app("redis://localhost").conf.broker_transport_options
    assert cycle_by_name(options["queue_order_strategy"]) is Turns
    assert len(NAMES) == len(set(NAMES)) == 2 * LANES * len(Priority)


def test_each_priority_has_its_share_of_a_period_spread_evenly() -> None:
    turns = schedule(WEIGHTS)
    assert Counter(turns) == WEIGHTS
    assert turns[0] is Priority.INTERACTIVE
    assert max(len(list(run)) for name, run in groupby(turns) if name is not Priority.INTERACTIVE) == 1


def test_alone_it_is_first_and_unused_turns_go_to_the_most_urgent() -> None:
    backlog = {list_name("eval.cpu", priority, 0): 3 for priority in Priority}
    served = serve(backlog)
    assert [name.split("/")[1] for name in served[:4]] == ["interactive", "interactive", "validation", "interactive"]
    assert [name.split("/")[1] for name in served[-3:]] == ["backfill"] * 3
    without_urgent = serve({list_name("eval.cpu", priority, 0): 20 for priority in list(Priority)[2:]})
    assert [name.split("/")[1] for name in without_urgent[:22]].count("training") == 20


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 60)))
def test_whatever_waits_is_served_within_a_bound(backlog: dict[str, int]) -> None:
    """Of any list that has something, one message is served each time that its priority and its lane come round."""
    served = serve(backlog)
    assert Counter(served) == backlog
    for name, count in backlog.items():
        priority = Priority(name.split("/")[1])
        lanes = sum(other.split("/")[1] == priority for other in backlog)
        bound = lanes * PERIOD
        places = [index for index, each in enumerate(served) if each == name]
        assert len(places) == count
        gaps = [later - earlier for earlier, later in zip([-1, *places], places, strict=False)]
        assert max(gaps) <= bound


@given(st.lists(st.integers(0, LANES - 1), min_size=2, max_size=LANES, unique=True))
def test_lanes_share_evenly(lanes: list[int]) -> None:
    names = [list_name("eval.cpu", Priority.TRAINING, lane) for lane in lanes]
    served = serve({names[0]: 500} | dict.fromkeys(names[1:], 10))
    for name in names[1:]:
        assert max(index for index, each in enumerate(served) if each == name) < 10 * len(names)


def test_a_list_of_another_release_goes_last() -> None:
    turns = Turns()
    turns.update(["celery", list_name("eval.cpu", Priority.TRAINING, 0)])
    assert turns.consume(2) == [list_name("eval.cpu", Priority.TRAINING, 0), "celery"]
    assert turns.consume(1) == [list_name("eval.cpu", Priority.TRAINING, 0)]
    assert turns.rotate("unknown") == "unknown"


@pytest.mark.slow
@pytest.mark.redis
async def test_two_clients_and_three_priorities_through_a_worker(service: Broker) -> None:
    """A backlog of one client holds up neither the other one nor what is urgent, and is not starved by it."""
    owners: dict[str, str] = {}
    async with EvaluationQueue(service.url) as greedy, EvaluationQueue(service.url) as modest:

        async def submit(queue: EvaluationQueue, owner: str, priority: Priority, count: int) -> list[Any]:
            handles = [await queue.submit(echo_request(sleep=0.002), priority=priority) for _ in range(count)]
            owners.update({handle.id: owner for handle in handles})
            return handles

        blocker = await greedy.submit(echo_request(sleep=2.0))
        handles = await submit(greedy, "greedy", Priority.TRAINING, 120)
        handles += await submit(modest, "modest", Priority.TRAINING, 10)
        handles += await submit(modest, "urgent", Priority.INTERACTIVE, 60)
        assert not blocker.done()
        await asyncio.gather(blocker.reply(), *(handle.reply() for handle in handles))
    with service.client() as client:
        rows: Any = client.lrange(STARTS, 0, -1)
    started = [owners[name] for name in (row.split()[0] for row in rows) if name in owners]
    urgent = started[: len(started) - 1 - started[::-1].index("urgent")]
    assert len(urgent) < 60 * 1.3, "the urgent go first"
    assert urgent.count("greedy") + urgent.count("modest") >= 5, "and the others are not starved"
    later = deque(started[len(urgent) + 1 :])
    last_modest = max(index for index, owner in enumerate(later) if owner == "modest")
    assert last_modest <= 20, "two clients share"
