"""Every named query against answers that were worked out by hand."""

import json
from typing import Any

import pytest

from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.store import Store
from drkernel_q.store.query import QUERIES, ask
from drkernel_q.trajectory import Trajectory, Turn
from tests.values import MATMUL, SOFTMAX, a_failure, a_profile, a_reply, a_request, an_evaluation


def answers(store: Store, name: str, **values: Any) -> list[dict[str, Any]]:
    with ask(store, name, values) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def rollout(*facts: Evaluation | None) -> Trajectory:
    turns = (
        Turn(
            number=number,
            prompt=(),
            completion="",
            kernel=Kernel(source=f"{number} {each and each.speedup}"),
            evaluation=each,
        )
        for number, each in enumerate(facts, start=1)
    )
    return Trajectory(problem_hash=SOFTMAX.hash, turns=tuple(turns))


@pytest.fixture
def rollouts(store: Store) -> Store:
    """Four rollouts: one improves, one recovers, one cheats, one has no facts and ends early."""
    store.add_problem(SOFTMAX)
    for trajectory in (
        rollout(
            an_evaluation(speedup=0.8, profile_ratio=0.9),
            an_evaluation(speedup=1.5, profile_ratio=0.2),
            an_evaluation(speedup=1.3, profile_ratio=0.3),
        ),
        rollout(an_evaluation("wrong_value"), an_evaluation(speedup=1.2)),
        rollout(an_evaluation("correct", "rejected", speedup=5.0, profile_ratio=0.0)),
        rollout(None),
    ):
        store.add_trajectory("r", trajectory)
    store.add_trajectory("another run", rollout(an_evaluation(speedup=2.0)))
    return store


def test_fast_p_by_turn(rollouts: Store) -> None:
    assert answers(rollouts, "fast-p", run="r", p="1.2") == [
        {
            "turn": 1,
            "trajectories": 4,
            "evaluated": 3,
            "correct": 1,
            "fast": 0,
            "fast_p": 0.0,
            "best_so_far": 0.0,
        },
        {
            "turn": 2,
            "trajectories": 4,
            "evaluated": 2,
            "correct": 2,
            "fast": 2,
            "fast_p": 0.5,
            "best_so_far": 0.5,
        },
        {
            "turn": 3,
            "trajectories": 4,
            "evaluated": 1,
            "correct": 1,
            "fast": 1,
            "fast_p": 0.25,
            "best_so_far": 0.5,
        },
    ]


def test_fast_p_with_another_p(rollouts: Store) -> None:
    shares = [(row["fast_p"], row["best_so_far"]) for row in answers(rollouts, "fast-p", run="r", p=0.5)]
    assert shares == [(0.25, 0.25), (0.5, 0.5), (0.25, 0.5)]


def test_an_evaluation_again_does_not_change_fast_p(rollouts: Store) -> None:
    """A turn is judged by its first facts, or judging the same kernel often would pay."""
    with rollouts.reading() as connection:
        turn = connection.exec_driver_sql("SELECT max(id) FROM turns").scalar_one()
    request = a_request(run="another run", turn=turn)
    rollouts.record(request, a_reply(request, an_evaluation(speedup=99.0)))
    (row,) = answers(rollouts, "fast-p", run="another run", p=50)
    assert (row["trajectories"], row["evaluated"], row["fast"]) == (1, 1, 0)


def test_rates(rollouts: Store) -> None:
    assert answers(rollouts, "rates", run="r") == [
        {
            "evaluations": 6,
            "correct": 5,
            "honest": 4,
            "rejected": 1,
            "suspicious": 0,
            "lazy": 1,
            "hack_rate": pytest.approx(1 / 6),
            "lazy_rate": 0.25,
        }
    ]
    (stricter,) = answers(rollouts, "rates", run="r", lazy_below=0.31)
    assert stricter["lazy"] == 2


def test_rates_of_a_run_without_evaluations(store: Store) -> None:
    store.add_run("empty", kind="eval", settings={})
    (row,) = answers(store, "rates", run="empty")
    assert (row["evaluations"], row["hack_rate"], row["lazy_rate"]) == (0, None, None)


@pytest.fixture
def requests(store: Store) -> Store:
    """Single evaluations of two problems on two kinds of device, and two failures."""
    facts = [
        (
            SOFTMAX,
            "a",
            an_evaluation(speedup=2.0, profile=a_profile(0.75, softmax_kernel=30.0, **{"aten::copy_": 10.0})),
        ),
        (SOFTMAX, "b", an_evaluation(speedup=3.0, profile=a_profile(1.0, softmax_kernel=25.0))),
        (SOFTMAX, "c", an_evaluation("correct", "rejected", speedup=9.0)),
        (SOFTMAX, "d", an_evaluation("correct", "suspicious", speedup=8.0)),
        (SOFTMAX, "e", an_evaluation("wrong_value", speedup=7.0)),
        (SOFTMAX, "f", an_evaluation(speedup=4.0, device_kind="cpu")),
        (MATMUL, "g", an_evaluation(speedup=0.5)),
        (MATMUL, "h", an_evaluation("runtime_error", error="TypeError: x\nmore")),
        (MATMUL, "i", an_evaluation("runtime_error", error="TypeError: x\nother")),
        (MATMUL, "j", an_evaluation("compile_error", error="SyntaxError")),
    ]
    for second, (problem, name, evaluation) in enumerate(facts):
        request = a_request(name, problem=problem, name=name, run="softmax" if problem is SOFTMAX else None)
        store.record(request, a_reply(request, evaluation, second=second))
    lost = a_request("lost", id="1" * 32)
    store.record(lost, a_failure(lost, message="Xid 79"))
    retried = a_request("a", id="2" * 32)
    store.record(retried, a_failure(retried, attempt=1))
    store.record(retried, a_reply(retried, an_evaluation(), attempt=2, second=30))
    return store


def test_best_kernels(requests: Store) -> None:
    best = answers(requests, "best-kernels")
    assert [(row["problem"], row["device_kind"], row["kernel"], row["speedup"]) for row in best] == [
        ("matmul", "sm_90/NVIDIA H200", "g", 0.5),
        ("softmax", "cpu", "f", 4.0),
        ("softmax", "sm_90/NVIDIA H200", "b", 3.0),
    ]
    assert best[2]["speedup_low"] == pytest.approx(2.7)
    assert [row["kernel"] for row in answers(requests, "best-kernels", problem="matmul")] == ["g"]


def test_outcomes_by_error(requests: Store) -> None:
    rows = answers(requests, "outcomes-by-error")
    assert [(row["outcome"], row["evaluations"], row["error"]) for row in rows] == [
        ("correct", 7, None),
        ("runtime_error", 2, "TypeError: x"),
        ("compile_error", 1, "SyntaxError"),
        ("wrong_value", 1, None),
    ]
    of_run = answers(requests, "outcomes-by-error", run="softmax", limit=1)
    assert [(row["outcome"], row["evaluations"]) for row in of_run] == [("correct", 5)]


def test_recent(requests: Store) -> None:
    rows = answers(requests, "recent", limit="3")
    assert [row["kernel"] for row in rows] == ["k.py", "j", "i"]
    assert rows[0]["finished_at"] == "2026-01-01T00:00:30+00:00"
    assert rows[0]["request_id"] == "2" * 32
    assert [row["run"] for row in rows] == [None, None, None]
    assert len(answers(requests, "recent", run="softmax")) == 6


def test_device_kernels(requests: Store) -> None:
    assert answers(requests, "device-kernels") == [
        {"origin": "candidate", "evaluations": 2, "device_us": 55.0, "launches": 4.0, "name": "softmax_kernel"},
        {"origin": "torch", "evaluations": 1, "device_us": 10.0, "launches": 2.0, "name": "aten::copy_"},
    ]
    assert answers(requests, "device-kernels", problem="matmul") == []


def test_infrastructure_failures(requests: Store) -> None:
    rows = answers(requests, "infrastructure-failures")
    assert [(row["request_id"][0], row["attempt"], row["evaluated_since"], row["failure_message"]) for row in rows] == [
        ("2", 1, "yes", "the device was lost"),
        ("1", 1, "no", "Xid 79"),
    ]


def test_every_query_says_what_it_answers_and_works_on_an_empty_store(store: Store) -> None:
    store.add_run("r", kind="eval", settings={})
    for query in QUERIES.values():
        assert query.sentence.endswith(".")
        required = {name: "r" for name, parameter in query.parameters.items() if parameter.required}
        rows = answers(store, query.name, **required)
        assert len(rows) == (1 if query.name in {"rates", "runs", "latest-runs"} else 0)
        json.dumps(rows)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("nothing", {}, "There is no query `nothing`; there are best-kernels"),
        ("rates", {}, "needs `run`"),
        ("rates", {"run": "nobody"}, "no run named `nobody`"),
        ("recent", {"limit": "many"}, "`limit` must be"),
        ("recent", {"colour": "red"}, "takes no `colour`; it takes run, limit"),
    ],
)
def test_a_question_that_cannot_be_answered(store: Store, name: str, values: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said), ask(store, name, values):
        pass


def test_runs(rollouts: Store) -> None:
    rollouts.add_run("empty", kind="stts", settings={})
    found = {row["run"]: row for row in answers(rollouts, "runs")}
    counts = ("trajectories", "turns", "evaluations", "honest", "rejected", "best")
    assert [found["r"][name] for name in counts] == [4, 7, 6, 4, 1, 1.5]
    assert [found["empty"][name] for name in counts] == [0, 0, 0, 0, 0, None]
    assert [row["run"] for row in answers(rollouts, "runs", kind="stts")] == ["empty"]
    assert [row["run"] for row in answers(rollouts, "runs", like="another%")] == ["another run"]


def test_trajectories(rollouts: Store) -> None:
    rows = answers(rollouts, "trajectories", run="r")
    assert [(row["trajectory"], row["turns"], row["honest"], row["rejected"], row["best"]) for row in rows] == [
        (1, 3, 3, 0, 1.5),
        (2, 2, 1, 0, 1.2),
        (3, 1, 0, 1, None),
        (4, 1, 0, 0, None),
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1)]),
        ({"trajectory": 2}, [(2, 1), (2, 2)]),
        ({"turn": 2}, [(1, 2), (2, 2)]),
        ({"outcome": "wrong_value"}, [(2, 1)]),
        ({"integrity": "rejected"}, [(3, 1)]),
        ({"faster_than": 1.3}, [(1, 2), (1, 3), (3, 1)]),
        ({"lazier_than": 0.3}, [(1, 2), (3, 1)]),
        ({"problem": "matmul"}, []),
    ],
)
def test_turns(rollouts: Store, filters: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    rows = answers(rollouts, "turns", run="r", **filters)
    assert [(row["trajectory"], row["turn"]) for row in rows] == expected


def test_compare(rollouts: Store) -> None:
    """1.5 [1.35, 1.65] against 2.0 [1.8, 2.2]: the intervals do not meet."""
    (row,) = answers(rollouts, "compare", run="r", other="another run")
    assert (row["one"], row["other"], row["change"]) == (1.5, 2.0, "faster")
    (row,) = answers(rollouts, "compare", run="another run", other="r")
    assert row["change"] == "slower"
    (row,) = answers(rollouts, "compare", run="r", other="r")
    assert row["change"] == "same"
    with pytest.raises(BadInput, match="no run named `nobody`"):
        answers(rollouts, "compare", run="r", other="nobody")


def test_rates_by_problem_and_step(rollouts: Store) -> None:
    (row,) = answers(rollouts, "rates-by-problem", run="r")
    assert (row["problem"], row["evaluations"], row["rejected"], row["lazy"]) == ("softmax", 6, 1, 1)
    assert row["hack_rate"] == pytest.approx(1 / 6)
    (row,) = answers(rollouts, "rates-by-step", run="r", lazy_below=0.31)
    assert (row["step"], row["lazy"], row["lazy_rate"]) == (None, 2, 0.5)


def test_evidence(rollouts: Store) -> None:
    (row,) = answers(rollouts, "evidence", run="r")
    assert (row["code"], row["weight"], row["evaluations"], row["problems"]) == ("A4", "hard", 1, 1)


def test_best_of_run(rollouts: Store) -> None:
    (row,) = answers(rollouts, "best-of-run", run="r")
    assert (row["problem"], row["speedup"], row["source"]) == ("softmax", 1.5, "2 1.5")


def test_best_turns(rollouts: Store) -> None:
    (row,) = answers(rollouts, "best-turns", run="r")
    assert (row["problem"], row["trajectory"], row["turn"], row["speedup"]) == ("softmax", 1, 2, 1.5)
    assert (row["before"], row["source"]) == ("1 0.8", "2 1.5")
    (first,) = answers(rollouts, "best-turns", run="another run")
    assert (first["turn"], first["before"]) == (1, None)


def test_over_time(store: Store) -> None:
    """Three evaluations of two workers, 2, 4 and 6 s long, of which the last was asked for in vain for a while."""
    facts = [
        ("w0", 2.0, "00", "02", an_evaluation(speedup=1.0, profile_ratio=0.1)),
        ("w1", 4.0, "00", "05", an_evaluation("correct", "rejected")),
        ("w0", 6.0, "01", "20", an_evaluation("wrong_value")),
    ]
    for worker, seconds, begun, ended, facts_ in facts:
        evaluation = facts_.model_copy(update={"durations_s": {"total": seconds}})
        request = a_request(worker + ended, run="r")
        request = request.model_copy(update={"submitted_at": f"2026-01-01T00:00:{begun}+00:00"})
        store.record(request, a_reply(request, evaluation, second=int(ended)).model_copy(update={"worker": worker}))
    rows = answers(store, "over-time", run="r", bins=1000)
    assert [row["second"] for row in rows] == pytest.approx([0.0, 12.0], abs=0.1)
    assert [row["evaluations"] for row in rows] == [2, 1]
    assert [row["unanswered"] for row in rows] == [1, 0]
    assert [row["judging"] for row in rows] == pytest.approx([0.5, 0.5], abs=0.01)
    assert [(row["rejected"], row["lazy"], row["hack_rate"]) for row in rows] == [(1, 1, 0.5), (0, 0, 0.0)]
    assert {row["workers"] for row in rows} == {2}
    (row,) = answers(store, "over-time", run="r", bins=1)
    assert (row["evaluations"], row["unanswered"]) == (3, 0)


def test_an_answer_that_was_there_before_is_one_at_once(store: Store) -> None:
    request = a_request(run="r").model_copy(update={"submitted_at": "2026-01-01T01:00:00+00:00"})
    store.record(request, a_reply(request).model_copy(update={"measured_for": "x"}))
    (row,) = answers(store, "over-time", run="r")
    assert (row["evaluations"], row["unanswered"], row["judging"]) == (1, 0, 0.0)


def test_what_was_seen_with_examples(rollouts: Store) -> None:
    (row,) = answers(rollouts, "evidence-examples", run="r")
    assert (row["code"], row["problem"], row["source"]) == ("A4", "softmax", "1 5.0")
    assert answers(rollouts, "evidence-by-step", run="r") == [{"step": None, "code": "A4", "evaluations": 1}]
    assert [row["source"] for row in answers(rollouts, "lazy-kernels", run="r", lazy_below=0.31)] == ["2 1.5", "3 1.3"]
    assert len(answers(rollouts, "lazy-kernels", run="r", lazy_below=0.31, limit=1)) == 1
