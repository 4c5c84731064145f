"""What whoever watches is shown: a store with a training run in it, devices, metrics, logs."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from drkernel_q.journal import JsonLines
from drkernel_q.kernel import Kernel
from drkernel_q.lesson import Lesson
from drkernel_q.store import Store
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.gateway.conftest import Served, gateway_on
from tests.gateway.test_evaluations import order
from tests.queue.conftest import Broker, persisting, wait_until
from tests.values import SOFTMAX, a_failure, a_request, an_evaluation

pytestmark = pytest.mark.redis


def improving() -> Trajectory:
    """Wrong, then right and slow, then fast."""
    facts = (an_evaluation("wrong_value"), an_evaluation(speedup=0.9), an_evaluation(speedup=2.0, profile_ratio=0.5))
    turns = tuple(
        Turn(
            number=number,
            prompt=(Message(role="user", content="write"),),
            completion=f"answer {number}",
            kernel=Kernel(source=f"import torch\nx = {number}\n"),
            evaluation=each,
            policy_version=0,
        )
        for number, each in enumerate(facts, start=1)
    )
    return Trajectory(problem_hash=SOFTMAX.hash, turns=turns)


def fill(store: Store) -> None:
    """A training run of two steps with two trajectories and a validation, and a failure."""
    store.add_problem(SOFTMAX)
    store.add_run("t/1", kind="train", settings={})
    for number in (1, 2):
        assert store.add_trajectory("t/1", improving()) == number
        store.add_lessons(
            "t/1",
            [
                Lesson(problem_hash=SOFTMAX.hash, trajectory=number, turn=turn, step=number, reward=reward)
                for turn, reward in enumerate((0.0, 1.0, 2.0 * number), start=1)
            ],
        )
    store.add_trajectory("t/1-validation-000001", improving())
    request = a_request()
    store.record(request, a_failure(request))


@pytest.fixture(scope="module")
def shared(service: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Store]]:
    folder = tmp_path_factory.mktemp("watch")
    with Store.open(f"sqlite:///{folder / 'drkq.sqlite'}") as store:
        store.upgrade()
        fill(store)
        with gateway_on(service, folder, store=store) as served:
            yield served, store


@pytest.fixture
def eve(shared: tuple[Served, Store]) -> Iterator[httpx2.Client]:
    """Who may only look."""
    with shared[0].client("eve") as client:
        yield client


def test_devices_and_what_waits(eve: httpx2.Client, shared: tuple[Served, Store]) -> None:
    with shared[0].client("ann") as ann:
        where = ann.post("/v1/evaluations", json=order(order={"sleep": 30})).headers["Location"]
        found = eve.get("/v1/overview").json()
        ann.delete(where)
    assert [device["card"]["device"] for device in found["devices"]] == ["cpu"]
    assert found["queues"].keys() == {"eval.cpu"}
    assert found["clients"] == {"ann": 1}
    assert set(found["waiting"]) == {"interactive", "validation", "training", "backfill"}


def test_runs_progress_and_validations(eve: httpx2.Client) -> None:
    assert [row["run"] for row in eve.get("/v1/runs", params={"kind": "train"}).json()["rows"]] == ["t/1"]
    found = eve.get("/v1/progress", params={"run": "t/1"}).json()
    assert [(row["step"], row["turns"], row["reward"]) for row in found["steps"]] == [(1, 3, 1.0), (2, 3, 5 / 3)]
    assert [row["fast_p"] for row in found["steps"]] == pytest.approx([1 / 3, 1 / 3])
    assert found["validations"] == [{"step": 1, "trajectories": 1, "fast_p": 1.0}]
    assert eve.get("/v1/progress", params={"run": "nothing"}).status_code == 422


def test_trajectories_turn_by_turn_with_diffs(eve: httpx2.Client) -> None:
    rows = eve.get("/v1/trajectories", params={"run": "t/1"}).json()["rows"]
    assert [(row["trajectory"], row["turns"], row["honest"], row["best"]) for row in rows] == [
        (2, 3, 2, 2.0),
        (1, 3, 2, 2.0),
    ]
    place = {"run": "t/1", "problem": "softmax", "number": 2}
    turns = eve.get("/v1/trajectory", params=place).json()["turns"]
    assert [turn["outcome"] for turn in turns] == ["wrong_value", "correct", "correct"]
    assert "-x = 1\n+x = 2" in turns[1]["diff"]
    assert turns[2]["reward"] == 2.0
    assert turns[0]["completion"] is None
    told = eve.get("/v1/trajectory", params={**place, "texts": True}).json()["turns"][0]
    assert (told["completion"], told["prompt"][0]["content"]) == ("answer 1", "write")
    assert eve.get("/v1/trajectory", params={**place, "number": 9}).status_code == 404


def test_errors(eve: httpx2.Client) -> None:
    found = eve.get("/v1/errors").json()
    assert found["quarantined"] == []
    assert [row["failure_message"] for row in found["failures"]] == ["the device was lost"]


def test_forgotten_evaluation_is_found_in_the_store(shared: tuple[Served, Store]) -> None:
    served, store = shared
    request = a_request()
    store.record(request, a_failure(request))
    with served.client("ann") as ann:
        found = ann.get(f"/v1/evaluations/{request.id}").json()
        assert (found["state"], found["reply"]["failure"]["message"]) == ("done", "the device was lost")


def test_metrics_count_what_every_client_finds_out(
    eve: httpx2.Client, shared: tuple[Served, Store], service: Broker
) -> None:
    served, store = shared
    eve.get("/metrics")
    with persisting(service, store), served.client("ann") as ann:
        done = ann.post("/v1/evaluations", json=order("counted"), params={"wait_s": 20}).json()
        wait_until(lambda: store.find(done["id"]), "the reply is in the store")
        text = eve.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['drkq_evaluations_total{device_kind="cpu",integrity="clean",outcome="correct"}']) >= 1
    assert float(lines['drkq_gateway_replies_total{cached="false",result="evaluation"}']) >= 1
    assert lines['drkq_queue_depth{queue="eval.cpu"}'] == "0.0"
    assert any(name.startswith("drkq_device_state{") and value == "1.0" for name, value in lines.items())
    assert lines["drkq_broker_up"] == "1.0"
    code = 'drkq_http_requests_total{code="200",method="POST",route="/v1/evaluations"}'
    assert float(lines[code]) >= 1
    assert "has-a-long-token" not in text


def test_log_leads_from_request_to_reply(eve: httpx2.Client, shared: tuple[Served, Store], caplog: Any) -> None:
    with caplog.at_level(logging.INFO), shared[0].client("ann") as ann:
        done = ann.post(
            "/v1/evaluations", json=order("logged"), params={"wait_s": 20}, headers={"X-Request-Id": "mine"}
        ).json()
        # The last line comes when the answer has gone out.
        wait_until(lambda: any(getattr(each, "code", 0) for each in caplog.records), "the request is in the log")
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    mine = {line["action"]: line for line in lines if "mine" in line.values() or done["id"] in line.values()}
    assert (mine["accepted"]["http_request"], mine["accepted"]["evaluation"]) == ("mine", done["id"])
    assert (mine["replied"]["outcome"], mine["replied"]["worker"]) == ("correct", "w1")
    assert (mine["request"]["code"], mine["request"]["client"]) == (200, "ann")
    assert "has-a-long-token" not in json.dumps(lines)
