"""Recording replies: once in effect, whatever is delivered twice, late or at the same time."""

import multiprocessing
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import text

from drkernel_q.errors import BadInput
from drkernel_q.store import Store
from tests.need import PATIENT_S
from tests.values import a_failure, a_reply, a_request, an_evaluation

PROCESSES = 6


def count(store: Store, table: str) -> int:
    return store.status().rows[table]


def scalar(store: Store, sql: str) -> object:
    with store.reading() as connection:
        return connection.scalar(text(sql))


def test_a_reply_is_found_as_it_was_recorded(store: Store) -> None:
    request = a_request(run="r")
    reply = a_reply(request, an_evaluation("correct", "rejected", speedup=2.0, profile_ratio=0.25))
    assert store.record(request, reply)
    assert store.find(request.id) == reply
    assert store.find("0" * 32) is None


def test_the_same_reply_twice_is_written_once(store: Store) -> None:
    request = a_request()
    reply = a_reply(request, an_evaluation(integrity="rejected", profile_ratio=0.5))
    assert [store.record(request, reply), store.record(request, reply)] == [True, False]
    assert store.record_all([(request, reply), (request, reply)]) == [False, False]
    counts = store.status().rows
    assert {name: counts[name] for name in ("evaluations", "attempts", "evidence", "profile_kernels")} == {
        "evaluations": 1,
        "attempts": 1,
        "evidence": 1,
        "profile_kernels": 2,
    }


def test_the_same_text_is_stored_once(store: Store) -> None:
    pairs = [(request, a_reply(request)) for request in (a_request("same"), a_request("same"), a_request("other"))]
    assert store.record_all(pairs) == [True, True, True]
    counts = store.status().rows
    assert (counts["kernels"], counts["problems"], counts["environments"], counts["evaluations"]) == (2, 1, 1, 3)


def test_a_failure_is_found_until_there_are_facts(store: Store) -> None:
    request = a_request()
    assert store.record(request, a_failure(request, attempt=1, message="first"))
    assert store.record(request, a_failure(request, attempt=2, message="second"))
    found = store.find(request.id)
    assert found is not None
    assert found.failure is not None
    assert (found.attempt, found.failure.message) == (2, "second")
    facts = a_reply(request, attempt=3)
    assert store.record(request, facts)
    assert store.find(request.id) == facts
    assert count(store, "attempts") == 3


def test_the_first_facts_stand_against_later_attempts(store: Store) -> None:
    request = a_request()
    first = a_reply(request, an_evaluation(speedup=1.5), attempt=1)
    assert store.record(request, first)
    assert not store.record(request, a_reply(request, an_evaluation(speedup=9.0), attempt=2))
    store.record(request, a_failure(request, attempt=3))
    assert store.find(request.id) == first
    assert count(store, "evaluations") == 1


def test_an_attempt_that_was_overtaken_writes_no_facts(store: Store) -> None:
    request = a_request()
    store.record(request, a_failure(request, attempt=2))
    assert not store.record(request, a_reply(request, attempt=1))
    assert count(store, "evaluations") == 0
    found = store.find(request.id)
    assert found is not None
    assert found.failure is not None


def test_a_batch_is_written_whole_or_not_at_all(store: Store) -> None:
    good, bad = a_request(), a_request()
    with pytest.raises(BadInput, match="came with the request"):
        store.record_all([(good, a_reply(good)), (bad, a_reply(good))])
    assert store.find(good.id) is None
    assert count(store, "problems") == 0


def test_a_reply_that_says_nothing_is_refused(store: Store) -> None:
    request = a_request()
    empty = a_reply(request).model_copy(update={"evaluation": None})
    with pytest.raises(BadInput, match="either an evaluation or a failure"):
        store.record(request, empty)
    odd = a_reply(request).model_copy(update={"finished_at": "yesterday"})
    with pytest.raises(BadInput, match="ISO 8601"):
        store.record(request, odd)


@pytest.mark.parametrize("odd", [{"turn": 2**70}, {"turn": 2**40}])
def test_what_no_database_can_hold_is_bad_input(store: Store, odd: dict[str, int]) -> None:
    request = a_request(**odd)
    try:
        assert store.record(request, a_reply(request))
    except BadInput:
        assert count(store, "problems") == 0


def test_an_attempt_that_no_claim_can_have_is_refused(store: Store) -> None:
    request = a_request()
    with pytest.raises(BadInput, match="refuses"):
        store.record(request, a_reply(request, attempt=0))
    assert count(store, "problems") == 0


def test_facts_are_kept_when_the_turn_they_name_is_not_there(store: Store) -> None:
    request = a_request(turn=4711)
    assert store.record(request, a_reply(request))
    assert scalar(store, "SELECT turn_id FROM evaluations") is None


def test_every_character_survives(store: Store) -> None:
    request = a_request("a\0b␀c\ud800", name="\0.py", run="r\0")
    reply = a_reply(request, an_evaluation("runtime_error", error="␀0000\0", stdout="\0" * 3, durations_s={"\0": 1.0}))
    assert store.record(request, reply)
    assert store.find(request.id) == reply


def test_times_are_utc(store: Store) -> None:
    request = a_request()
    store.record(request, a_reply(request).model_copy(update={"finished_at": "2026-01-01T03:00:00+02:00"}))
    found = store.find(request.id)
    assert found is not None
    assert found.finished_at == "2026-01-01T01:00:00+00:00"


def _record_many(url: str, barrier: Barrier, rounds: list[tuple[object, object]]) -> None:
    with Store.open(url) as store:
        barrier.wait(PATIENT_S)
        for request, reply in rounds:
            store.record(request, reply)  # type: ignore[arg-type]


@pytest.mark.slow
def test_six_processes_that_record_the_same_requests_write_each_once(store_url: str) -> None:
    requests = [a_request(f"kernel {number % 3}", run="r") for number in range(10)]
    rounds = [(each, a_reply(each, an_evaluation(speedup=2.0, profile_ratio=0.5))) for each in requests]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["drkernel_q.store", "tests.values"])
    barrier = context.Barrier(PROCESSES)
    processes = [
        # Half of them backwards, so that locks are taken in both orders.
        context.Process(target=_record_many, args=(store_url, barrier, rounds[:: 1 if number % 2 else -1]))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENT_S)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    with Store.open(store_url) as store:
        counts = store.status().rows
        assert [counts[name] for name in ("evaluations", "attempts", "kernels", "problems", "runs")] == [
            10,
            10,
            3,
            1,
            1,
        ]
        assert counts["profile_kernels"] == 20
        assert all(store.find(each.id) == reply for each, reply in rounds)
