"""Evaluations over HTTP: submitted, waited for, followed, cancelled; against a real broker and a worker that echoes."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests.gateway.conftest import Served

pytestmark = pytest.mark.redis

Ask = Callable[..., httpx2.Response]


@pytest.fixture
def ann(gateway: Served) -> Iterator[httpx2.Client]:
    with gateway.client("ann") as client:
        yield client


def order(echo: str = "", **changes: Any) -> dict[str, Any]:
    """An order that the echo worker answers with `echo`; two of them are never the same."""
    told = {"echo": echo, "own": uuid.uuid4().hex, **changes.pop("order", {})}
    return {"problem": "softmax", "kernel": json.dumps(told), **changes}


def events(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_submitted_and_waited_for(ann: httpx2.Client) -> None:
    answer = ann.post("/v1/evaluations", json=order("hello"), params={"wait_s": 20})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["state"], found["problem"]) == ("done", "softmax")
    assert found["reply"]["evaluation"]["stdout"] == "hello"
    assert found["reply"]["evaluation"]["device"] == "cpu (interpreted)"


def test_accepted_then_asked_for(ann: httpx2.Client) -> None:
    answer = ann.post("/v1/evaluations", json=order("later", order={"sleep": 0.3}))
    assert answer.status_code == 202
    found = ann.get(answer.headers["Location"], params={"wait_s": 20}).json()
    assert found["id"] == answer.json()["id"]
    assert found["reply"]["evaluation"]["stdout"] == "later"


def test_wait_ends_without_a_reply(ann: httpx2.Client) -> None:
    answer = ann.post("/v1/evaluations", json=order(order={"sleep": 5}), params={"wait_s": 0.05})
    assert answer.status_code == 202
    assert answer.json()["reply"] is None
    ann.delete(answer.headers["Location"])


def test_same_order_twice_is_one_evaluation(ann: httpx2.Client) -> None:
    twice = order("once", id=uuid.uuid4().hex)
    first, second = (ann.post("/v1/evaluations", json=twice, params={"wait_s": 20}).json() for _ in range(2))
    assert first == second
    other = ann.post("/v1/evaluations", json=order("other", id=twice["id"]))
    assert other.status_code == 409


def test_cancelled_while_it_runs(ann: httpx2.Client) -> None:
    where = ann.post("/v1/evaluations", json=order(order={"sleep": 30})).headers["Location"]
    cancelled = ann.delete(where).json()
    assert cancelled["reply"]["failure"]["kind"] == "cancelled"
    # The worker has let go of it, or this one would wait half a minute.
    assert ann.post("/v1/evaluations", json=order("next"), params={"wait_s": 20}).json()["state"] == "done"


def test_followed_by_events(ann: httpx2.Client) -> None:
    where = ann.post("/v1/evaluations", json=order("told", order={"sleep": 0.3})).headers["Location"]
    with ann.stream("GET", f"{where}/events") as response:
        told = list(events(response))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [each["state"] for each in told][-1] == "done"
    assert told[-1]["reply"]["evaluation"]["stdout"] == "told"
    assert len(told) == len({each["state"] for each in told})


def test_batch_is_judged_whole_and_followed(ann: httpx2.Client) -> None:
    batch = {"evaluations": [order(str(number)) for number in range(5)]}
    accepted = ann.post("/v1/batches", json=batch).json()["evaluations"]
    ids = [each["id"] for each in accepted]
    with ann.stream("GET", "/v1/events", params={"id": ids}) as response:
        done = {each["id"]: each["reply"] for each in events(response) if each["state"] == "done"}
    assert [done[each]["evaluation"]["stdout"] for each in ids] == list("01234")


def test_batch_with_one_bad_order_is_refused_whole(ann: httpx2.Client) -> None:
    before = ann.get("/v1/evaluations", params={"open": False, "limit": 1000}).json()
    answer = ann.post("/v1/batches", json={"evaluations": [order(), order(problem="sofmax")]})
    assert answer.status_code == 422
    assert "did you mean `softmax`" in answer.json()["detail"]
    assert ann.get("/v1/evaluations", params={"open": False, "limit": 1000}).json() == before


def test_nobody_sees_what_is_another_clients(gateway: Served, ann: httpx2.Client) -> None:
    where = ann.post("/v1/evaluations", json=order("mine"), params={"wait_s": 20}).headers["Location"]
    with gateway.client("bob") as bob:
        assert bob.get(where).status_code == 404
        assert bob.delete(where).status_code == 404
        assert bob.get(f"{where}/events").status_code == 404
    assert ann.get(where).status_code == 200


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"problem": "../../etc/passwd"}, "no problem"),
        ({"problem": __file__}, "no problem"),
        ({"problem": None}, "Name the problem"),
        ({"device": "tpu"}, "names no device"),
        ({"device": "cuda:0"}, "No worker serves"),
        ({"constants": {"nothing": 1}}, "nothing"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"surprise": 1}, "surprise"),
        ({"id": "short"}, "id"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(ann: httpx2.Client, change: dict[str, Any], says: str) -> None:
    answer = ann.post("/v1/evaluations", json={**order(), **change})
    assert answer.status_code in {422, 503}
    assert says in answer.json()["detail"]


REFERENCE = "class Model: ...\ndef get_inputs(): ...\n"


def test_own_reference_needs_the_right(gateway: Served) -> None:
    own = {"kernel": order("own")["kernel"], "reference": REFERENCE}
    with gateway.client("ann") as ann, gateway.client("own") as trusted:
        assert ann.post("/v1/evaluations", json=own).status_code == 403
        answer = trusted.post("/v1/evaluations", json=own, params={"wait_s": 20})
        assert answer.json()["reply"]["evaluation"]["stdout"] == "own"
        assert trusted.post("/v1/evaluations", json={**own, "reference": "x = 1"}).status_code == 422


def test_a_failure_of_the_infrastructure_says_nothing_of_the_kernel(ann: httpx2.Client) -> None:
    answer = ann.post("/v1/evaluations", json=order(order={"fail": "infrastructure"}), params={"wait_s": 30}).json()
    assert answer["reply"]["evaluation"] is None
    assert answer["reply"]["failure"]["kind"] == "infrastructure"


def test_ready_and_alive_without_a_token(gateway: Served) -> None:
    with gateway.client("") as anybody:
        assert anybody.get("/livez").json()["ready"]
        assert anybody.get("/readyz").json() == {"ready": True, "reason": None}


def test_whoever_waits_is_sent_away_when_it_ends(gateway: Served, ann: httpx2.Client) -> None:
    """The event that ends waits is set from another thread, as a signal sets it."""
    where = ann.post("/v1/evaluations", json=order(order={"sleep": 30})).headers["Location"]
    threading.Timer(0.3, gateway.app.state.gateway.close).start()
    try:
        assert ann.get(where, params={"wait_s": 25}, timeout=10).json()["reply"] is None
        assert ann.get("/readyz").status_code == 503
    finally:
        gateway.app.state.gateway.counter.closing.clear()
        ann.delete(where)
