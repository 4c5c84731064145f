"""What was evaluated before: under which key it is found, for how long, and what it is as the answer to a request."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from drkernel_q import rules
from drkernel_q.artefact import Artefacts, pack
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Outcome, Protocol, Stage
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from drkernel_q.store.rejudge import rejudge
from tests.values import a_reply, a_request, an_evaluation, observed

LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)


def key(request: EvaluationRequest, evaluation: Evaluation | None = None) -> str:
    return request.content_key((evaluation or an_evaluation()).conditions)


def test_the_key_covers_what_decides_the_facts_and_nothing_else() -> None:
    request = a_request("k", name="a.py")
    environment = an_evaluation().environment
    same = [
        a_request("k", name="b.py", run="r", turn=3, deadline_s=1.0, fresh=True),
        request.model_copy(update={"problem": Problem(name="another name", source=request.problem.source)}),
    ]
    assert {key(each) for each in same} == {key(request)}
    other_host = an_evaluation().model_copy(update={"environment": environment.model_copy(update={"host": "b"})})
    assert key(request, other_host) == key(request)
    changed = [
        environment.model_copy(update={name: "other"})
        for name in ("device_kind", "torch", "triton", "driver", "python", "drkq")
    ]
    others = [an_evaluation().model_copy(update={"environment": each}) for each in changed]
    others.append(an_evaluation().model_copy(update={"rules_version": "next"}))
    keys = {key(request, each) for each in others} | {
        key(a_request("other")),
        key(a_request("k", protocol=Protocol(trials=6))),
        key(a_request("k", problem=Problem(name="softmax", source="other"))),
        key(request),
    }
    assert len(keys) == len(others) + 4


@pytest.mark.parametrize(
    ("evaluation", "lasting"),
    [
        (an_evaluation(), True),
        (an_evaluation("wrong_value", "unknown"), True),
        (an_evaluation("runtime_error", "unknown"), True),
        (an_evaluation("timeout", "unknown"), False),
        (an_evaluation("crashed", "unknown"), False),
        (an_evaluation("out_of_memory", "unknown"), False),
        (an_evaluation("correct", "unknown"), False),
        (an_evaluation("correct", "unknown", protocol=Protocol()), False),
        (an_evaluation("correct", "unknown", protocol=Protocol(stages=(Stage.CORRECTNESS,))), True),
    ],
)
def test_which_facts_last(evaluation: Evaluation, lasting: bool) -> None:
    assert evaluation.lasting is lasting
    assert Outcome(evaluation.outcome) is evaluation.outcome


def test_the_newest_that_lasts_is_found(store: Store) -> None:
    requests = [a_request("k") for _ in range(4)]
    evaluations = [an_evaluation(speedup=number) for number in (1.0, 2.0)]
    evaluations += [an_evaluation("timeout", "unknown"), an_evaluation("correct", "unknown")]
    replies = [
        a_reply(request, evaluation, second=second)
        for second, (request, evaluation) in enumerate(zip(requests, evaluations, strict=True))
    ]
    store.record_all(list(zip(requests, replies, strict=True)))
    wanted = key(requests[0])
    assert store.find_content([wanted], LONG_AGO) == replies[1]
    assert store.find_content(["b2:none", wanted], LONG_AGO) == replies[1]
    assert store.find_content([key(a_request("other"))], LONG_AGO) is None
    assert store.find_content([], LONG_AGO) is None
    finished_at = datetime.fromisoformat(replies[1].finished_at)
    assert store.find_content([wanted], finished_at) == replies[1]
    assert store.find_content([wanted], finished_at + timedelta(seconds=0.5)) is None


def test_facts_that_answer_another_request_stay_what_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = a_request("k", run="one"), a_request("k", run="two")
    facts = an_evaluation(speedup=2.0, profile_ratio=1.0, protocol=Protocol(), observations=observed())
    facts = facts.revised(rules.judge(facts))
    raw = Artefacts(blocks={"eager": ((2.0, 2.1), (2.0, 2.2)), "candidate": ((1.0, 1.1), (1.0, 1.0))})
    packed = base64.b64encode(pack(raw)).decode()
    measured = a_reply(first, facts).model_copy(update={"artefacts": packed})
    shared = measured.shared_with(second.id)
    assert (shared.measured_for, shared.artefacts) == (first.id, None)
    assert shared.shared_with("0" * 32).measured_for == first.id, "never by way of another one"
    assert store.record_all([(first, measured), (second, shared), (second, shared)]) == [True, True, False]
    assert store.find(second.id) == shared
    assert store.artefacts(second.id) == store.artefacts(first.id) == raw
    assert store.find_content([key(first, facts)], LONG_AGO) == measured.model_copy(update={"artefacts": None})
    assert store.status().rows["evaluations"] == 2
    monkeypatch.setattr(rules, "RULES_VERSION", "next")
    summary = rejudge(store, run="two")
    assert (summary.judged, summary.without_raw_times) == (1, 0)


def test_only_a_shared_row_is_no_source(store: Store) -> None:
    """Its source was recorded elsewhere: it answers nobody, so that nothing is passed on for ever."""
    request: Any = a_request("k")
    store.record(request, a_reply(request, an_evaluation()).model_copy(update={"measured_for": "0" * 32}))
    assert store.find_content([key(request)], LONG_AGO) is None
