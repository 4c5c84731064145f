"""The judge over the queue: facts or nothing, asked under names that a resumed run asks again."""

from pathlib import Path
from typing import Any

import pytest

from drkernel_q.errors import BadProblem
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.queue.client import EvaluationQueue
from drkernel_q.store import Store
from drkernel_q.trajectory import Turn
from policy.rollouts.judging import QueueJudge
from tests.queue.conftest import Broker, persisting, wait_until
from tests.queue.echo_worker import STARTS
from tests.queue.requests import echo_request

pytestmark = pytest.mark.redis


def starts(broker: Broker) -> list[str]:
    with broker.client() as client:
        rows: Any = client.lrange(STARTS, 0, -1)
        return [row.split()[0] for row in rows]


async def judged(service: Broker, *runs: str, **order: Any) -> list[Evaluation | None]:
    """Ask for the same kernel under each run, each by a client of its own."""
    request = echo_request(**order)
    found = []
    for run in runs:
        async with EvaluationQueue(service.url) as queue:
            found.append(await QueueJudge(queue, run=run).evaluate(request.problem, request.kernel))
    return found


async def test_who_asks_again_for_a_run_is_answered_by_what_was_found(service: Broker) -> None:
    before = len(starts(service))
    first, again, other = await judged(service, "a", "a", "b", echo="hello")
    assert first is not None
    assert first.stdout == "hello"
    assert first == again == other
    assert len(starts(service)) == before + 1


async def test_a_failure_of_the_infrastructure_is_nothing_and_is_no_answer_later(service: Broker) -> None:
    request = echo_request(fail="infrastructure")
    before = len(starts(service))
    async with EvaluationQueue(service.url) as queue:
        judge = QueueJudge(queue, run="a")
        assert await judge.evaluate(request.problem, request.kernel) is None
        tries = starts(service)[before:]
        assert len(tries) > 1, "the queue itself tries again"
        assert await judge.evaluate(request.problem, request.kernel) is None
    assert set(starts(service)[before + len(tries) :]).isdisjoint(tries)


async def test_a_request_that_somebody_gave_up_is_made_again(service: Broker) -> None:
    before = len(starts(service))
    assert await judged(service, "a", fail="cancelled") == [None]
    assert len(set(starts(service)[before:])) == 2


async def test_a_deadline_is_nothing_and_a_bad_problem_an_error(service: Broker) -> None:
    assert await judged(service, "a", fail="deadline") == [None]
    with pytest.raises(BadProblem, match="as ordered"):
        await judged(service, "a", fail="problem")


async def test_run_request_and_turn_meet_in_the_store(service: Broker, tmp_path: Path) -> None:
    request = echo_request(echo="hello")
    with Store.open(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        store.upgrade()
        store.add_problem(request.problem)
        with persisting(service, store):
            async with EvaluationQueue(service.url, archive=store) as queue:
                evaluation = await QueueJudge(queue, run="linked").evaluate(request.problem, request.kernel)
            turn = Turn(
                number=1, prompt=(), completion="", kernel=Kernel(source=request.kernel.source), evaluation=evaluation
            )
            store.add_turn("linked", request.problem.hash, 1, turn)
            wait_until(lambda: linked(store), "the persister has written it")
        assert store.open_trajectory("linked", request.problem.hash, 1).turns == (turn,)


def linked(store: Store) -> bool:
    """The broker also holds replies to the other tests here."""
    with store.reading() as connection:
        rows = connection.exec_driver_sql(
            "SELECT e.request_id, r.name FROM evaluations e JOIN runs r ON r.id = e.run_id WHERE e.turn_id = 1"
        ).all()
    return [(request is not None, run) for request, run in rows] == [(True, "linked")]
