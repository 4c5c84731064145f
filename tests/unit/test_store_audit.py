"""Audits in the store: the latest stands, written once in effect, and found by problem and kind of device."""

from typing import Any

import pytest

from drkernel_q.audit import AUDIT_VERSION, FlagCode
from drkernel_q.errors import BadInput
from drkernel_q.store import Store
from drkernel_q.store.query import ask
from tests.values import (
    H200,
    MATMUL,
    SOFTMAX,
    a_failure,
    a_reply,
    a_request,
    an_audit,
    an_audit_reply,
    an_audit_request,
)


def answers(store: Store, name: str, **values: str) -> list[dict[str, Any]]:
    with ask(store, name, values) as (columns, rows):
        return [dict(zip(columns, row, strict=True)) for row in rows]


def test_an_audit_is_found_as_it_was_recorded(store: Store) -> None:
    request = an_audit_request()
    on_gpu, on_cpu = an_audit(zeros_pass=True, gaps={"flops": "too odd\0"}), an_audit("cpu")
    assert store.record(request, an_audit_reply(request, on_gpu))
    assert store.record(request, an_audit_reply(request, on_cpu))
    assert store.audits(SOFTMAX.hash) == {H200: on_gpu, "cpu": on_cpu}
    assert store.audits(MATMUL.hash) == {}
    assert store.find(request.id) is None, "an audit is no evaluation"
    assert store.status().rows["evaluations"] == store.status().rows["kernels"] == 0


def test_the_latest_stands_in_whatever_order_it_comes(store: Store) -> None:
    early, late = an_audit_request(), an_audit_request()
    first = an_audit_reply(early, an_audit(zeros_pass=True, reference_ms=0.001), second=1)
    second = an_audit_reply(late, an_audit(repeatable=False), second=2)
    assert [store.record(early, first), store.record(early, first)] == [True, False]
    assert store.record_all([(late, second), (early, first)]) == [True, False]
    assert store.audits(SOFTMAX.hash)[H200] == second.audit
    assert [row["flag"] for row in answers(store, "flags")] == ["random_forward"]
    assert store.status().rows["audits"] == 1


def test_an_audit_of_another_version_is_kept_and_does_not_count(store: Store) -> None:
    request = an_audit_request()
    store.record(request, an_audit_reply(request, an_audit(version="0")))
    assert store.audits(SOFTMAX.hash) == {}
    store.record(request, an_audit_reply(request))
    assert store.audits(SOFTMAX.hash)[H200].version == AUDIT_VERSION
    assert store.status().rows["audits"] == 2


def test_queries(store: Store) -> None:
    for problem, audit in (
        (SOFTMAX, an_audit(zeros_pass=True, reference_ms=0.01)),
        (MATMUL, an_audit(unusable="Model of matmul raises ValueError: no")),
    ):
        request = an_audit_request(problem)
        store.record(request, an_audit_reply(request, audit))
    rows = {row["problem"]: row for row in answers(store, "audits")}
    assert rows["softmax"]["reference_ms"] == 0.01
    assert (rows["softmax"]["speed_rewarded"], rows["softmax"]["flags"]) == ("no", 2)
    assert rows["matmul"]["unusable"] == "Model of matmul raises ValueError: no"
    assert [row["problem"] for row in answers(store, "audits", problem="matmul")] == ["matmul"]
    assert answers(store, "flags", flag=FlagCode.DEGENERATE) == [
        {"flag": "degenerate", "problem": "softmax", "device_kind": H200, "detail": "zeros would pass"}
    ]
    assert len(answers(store, "flags")) == 3


def test_a_failure_says_nothing_about_the_problem(store: Store) -> None:
    request = an_audit_request()
    failure = a_failure(a_request(id=request.id))
    assert not store.record(request, failure)
    assert store.audits(SOFTMAX.hash) == {}


def test_what_does_not_belong_together_is_refused(store: Store) -> None:
    audit, evaluation = an_audit_request(), a_request()
    with pytest.raises(BadInput, match="either an audit or a failure"):
        store.record(audit, a_reply(evaluation).model_copy(update={"id": audit.id}))
    with pytest.raises(BadInput, match="either an evaluation or a failure"):
        store.record(evaluation, an_audit_reply(audit).model_copy(update={"id": evaluation.id}))


def test_both_kinds_in_one_batch(store: Store) -> None:
    audit, evaluation = an_audit_request(), a_request()
    assert store.record_all([(audit, an_audit_reply(audit)), (evaluation, a_reply(evaluation))]) == [True, True]
    assert store.status().rows["environments"] == 1
