"""The counter: in which order, within which bounds, and that nothing is lost when the broker goes or clients vanish."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.gateway.limits import Limits
from drkernel_q.gateway.line import Line
from drkernel_q.gateway.submission import Submission
from drkernel_q.request import Priority
from tests.gateway.conftest import LIMITS, Served, gateway_on
from tests.gateway.test_evaluations import order
from tests.queue.conftest import Broker
from tests.values import a_request


async def a_submission(client: str, priority: Priority = Priority.TRAINING) -> Submission:
    return Submission(client, a_request(priority=priority), "cpu")


async def test_clients_take_turns_within_a_priority() -> None:
    line = Line()
    for client in "aaaaabbc":
        line.push(await a_submission(client))
    taken = [line.pop() for _ in range(8)]
    assert [each.client for each in taken if each] == list("abcabaaa")
    assert line.pop() is None


async def test_urgent_goes_first_and_nothing_waits_for_ever() -> None:
    line = Line()
    for _ in range(40):
        line.push(await a_submission("a", Priority.BACKFILL))
        line.push(await a_submission("b", Priority.INTERACTIVE))
    taken = [line.pop() for _ in range(23)]
    assert Counter(each.priority for each in taken if each) == {Priority.INTERACTIVE: 22, Priority.BACKFILL: 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.booleans()), max_size=40))
def test_whatever_is_pushed_is_popped_once_unless_it_was_removed(steps: list[tuple[str, Priority, bool]]) -> None:
    async def go() -> None:
        line, kept = Line(), []
        for client, priority, is_removed in steps:
            submission = await a_submission(client, priority)
            line.push(submission)
            if is_removed:
                line.remove(submission)
            else:
                kept.append(submission)
        assert len(line) == len(kept) == sum(line.waiting().values())
        popped = [line.pop() for _ in kept]
        assert {id(each) for each in popped} == {id(each) for each in kept}
        for client in "abc":
            mine = [each for each in popped if each and (each.client, each.priority) == (client, Priority.TRAINING)]
            assert mine == [each for each in kept if (each.client, each.priority) == (client, Priority.TRAINING)]
        assert line.pop() is None

    asyncio.run(go())


def post(client: httpx2.Client, **told: Any) -> str:
    answer = client.post("/v1/evaluations", json=order(**told))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@pytest.mark.slow
@pytest.mark.redis
def test_a_long_batch_of_one_client_does_not_hold_up_the_others(service: Broker, tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"in_flight": 2, "in_flight_a_worker": 2})
    with gateway_on(service, tmp_path, limits=limits) as served, served.client("ann") as ann:
        ann.post("/v1/batches", json={"evaluations": [order(order={"sleep": 0.05}) for _ in range(40)]})
        with served.client("bob") as bob:
            mine = bob.post("/v1/evaluations", json=order("bob"), params={"wait_s": 20}).json()
            left = ann.get("/v1/evaluations", params={"limit": 100}).json()["evaluations"]
        for each in left:
            ann.delete(f"/v1/evaluations/{each['id']}")
        assert mine["reply"]["evaluation"]["stdout"] == "bob"
        assert len(left) > 20
        assert {each["reply"] for each in left} == {None}


@pytest.mark.redis
def test_replies_are_kept_within_bounds_and_forgotten_oldest_first(service: Broker, tmp_path: Path) -> None:
    limits = Limits.model_validate(LIMITS.model_dump() | {"kept": 3, "kept_bytes": 100_000})
    with gateway_on(service, tmp_path, limits=limits) as served, served.client("ann") as ann:
        ids = []
        for number in range(5):
            told = ann.post("/v1/evaluations", json=order(str(number)), params={"wait_s": 20}).json()
            ids.append(told["id"])
        codes = [ann.get(f"/v1/evaluations/{each}").status_code for each in ids]
        assert codes == [404, 404, 200, 200, 200]
        counter = served.app.state.gateway.counter
        assert (counter.open.total(), counter.waiting_bytes, counter.finished) == (0, 0, 5)
        big = ann.post("/v1/evaluations", json=order("x" * 120_000), params={"wait_s": 20})
        assert big.status_code == 200
        assert counter.kept_bytes <= 100_000


@pytest.mark.slow
@pytest.mark.redis
def test_clients_that_vanish_leave_nothing_behind(gateway: Served) -> None:
    """Whoever waits or follows and hangs up: the evaluation goes on, and can be asked for."""
    with gateway.client() as ann:
        where = ann.post("/v1/evaluations", json=order("still", order={"sleep": 4})).headers["Location"]
    for path in (f"{where}?wait_s=30", f"{where}/events"):
        with pytest.raises(httpx2.ReadTimeout), gateway.client() as ann:
            ann.get(path, timeout=0.1)
    with gateway.client() as ann:
        assert ann.get(where, params={"wait_s": 20}).json()["reply"]["evaluation"]["stdout"] == "still"
