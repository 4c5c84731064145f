"""Verdicts that are revised: added, never overwritten, and shown by whatever reads the store."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from drkernel_q import rules
from drkernel_q.artefact import Artefacts, pack
from drkernel_q.cli.db import command
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Integrity, Protocol
from drkernel_q.observation import Evidence, Probe, Weight
from drkernel_q.reward import reward
from drkernel_q.speedup import measured_speedup
from drkernel_q.store import Store
from drkernel_q.store.dataset import DATASETS
from drkernel_q.store.query import ask
from drkernel_q.store.rejudge import Change, rejudge
from drkernel_q.trajectory import Trajectory, Turn
from tests.values import (
    SOFTMAX,
    a_reply,
    a_request,
    an_audit,
    an_audit_reply,
    an_audit_request,
    an_evaluation,
    observed,
)

BLOCKS = {"eager": ((2.0, 2.1), (2.0, 2.2), (2.1, 2.1)), "candidate": ((1.0, 1.1), (1.0, 1.0), (1.1, 1.1))}
RAW = Artefacts(blocks=BLOCKS, seeds={"weights": (2**62 + 1,)}, kernel_names={"timed": ("ker\u00fcnel",)})


def judged(**changes: Any) -> Evaluation:
    """An evaluation as a judge gives it, under the rules of now."""
    facts = an_evaluation(speedup=2.0, profile_ratio=1.0, protocol=Protocol(), observations=observed(**changes))
    return facts.revised(rules.judge(facts))


def record(store: Store, evaluation: Evaluation, raw: Artefacts | None = RAW, **more: Any) -> EvaluationRequest:
    second = more.pop("second", 5)
    request = a_request(**more)
    packed = raw and base64.b64encode(pack(raw)).decode()
    reply = a_reply(request, evaluation, second=second).model_copy(update={"artefacts": packed})
    assert store.record(request, reply)
    return request


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    with store.reading() as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


def recent(store: Store) -> dict[str, dict[str, Any]]:
    with ask(store, "recent", {}) as answer:
        found = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return {row["request_id"]: row for row in found}


@pytest.fixture
def stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of tomorrow, by which a hand in 70 % of the output is too little."""
    monkeypatch.setattr(rules, "RULES_VERSION", "2")
    monkeypatch.setattr(rules, "LEAST_TOUCHED", 0.7)


def test_artefacts_are_found_as_they_were_recorded(store: Store) -> None:
    request = record(store, judged())
    assert store.artefacts(request.id) == RAW
    assert store.artefacts("0" * 32) is None
    assert store.artefacts(record(store, judged(), None).id) is None
    again = a_reply(request, judged()).model_copy(update={"artefacts": base64.b64encode(pack(Artefacts())).decode()})
    assert not store.record(request, again)
    assert store.artefacts(request.id) == RAW, "the first stand, as the evaluation does"
    assert rows(store, "SELECT size_bytes FROM artefacts") == [(len(pack(RAW)),)]
    assert "artefacts" not in rows(store, "SELECT document FROM evaluations")[0][0]


def test_artefacts_that_are_none_are_refused(store: Store) -> None:
    request = a_request()
    with pytest.raises(BadInput, match="base64"):
        store.record(request, a_reply(request, judged()).model_copy(update={"artefacts": "?"}))
    assert store.find(request.id) is None


def test_an_evaluation_that_a_trajectory_brought_first_gets_its_artefacts(store: Store) -> None:
    request = a_request()
    store.add_problem(SOFTMAX)
    turn = Turn(number=1, prompt=(), completion="", kernel=request.kernel, evaluation=judged())
    store.add_trajectory("r", Trajectory(problem_hash=SOFTMAX.hash, turns=(turn,)))
    packed = base64.b64encode(pack(RAW)).decode()
    assert store.record(request, a_reply(request, judged()).model_copy(update={"artefacts": packed}))
    assert store.status().rows["evaluations"] == 1
    assert store.artefacts(request.id) == RAW


@pytest.mark.slow
@pytest.mark.usefixtures("stricter")
def test_both_verdicts_stay_and_the_later_one_is_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(rules, "RULES_VERSION", "1")
        before.setattr(rules, "LEAST_TOUCHED", 0.5)
        doubtful, honest = (judged(touched=share) for share in (0.6, 0.9))
    requests = [record(store, each, run="r", source=str(number)) for number, each in enumerate((doubtful, honest))]
    untouched = [store.find(request.id) for request in requests]
    dry = rejudge(store, dry_run=True)
    assert store.status().rows["verdicts"] == 0
    summary = rejudge(store)
    assert summary == dry
    assert (summary.rules_version, summary.examined, summary.judged) == ("2", 2, 2)
    assert summary.changes == {Change(Integrity.CLEAN, Integrity.SUSPICIOUS, ("A6",), ()): 1}
    assert rows(store, "SELECT integrity, rules_version FROM evaluations ORDER BY id") == [("clean", "1")] * 2
    assert rows(store, "SELECT integrity, rules_version FROM verdicts ORDER BY evaluation_id") == [
        ("suspicious", "2"),
        ("clean", "2"),
    ]
    assert [store.find(request.id) for request in requests] == untouched, "what the judge said can be read for ever"
    assert [recent(store)[request.id]["integrity"] for request in requests] == ["suspicious", "clean"]
    with ask(store, "rates", {"run": "r"}) as answer:
        assert [dict(zip(answer.columns, row, strict=True))["honest"] for row in answer.rows] == [1]
    with ask(store, "revised", {}) as answer:
        found = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert [(row["was"], row["integrity"], row["request_id"]) for row in found] == [
        ("clean", "suspicious", requests[0].id)
    ]
    again = rejudge(store)
    assert (again.judged, again.current, again.changes) == (0, 2, {})
    assert store.status().rows["verdicts"] == 2


@pytest.mark.usefixtures("stricter")
def test_speedups_follow_from_raw_times(store: Store) -> None:
    evaluation = judged().model_copy(update={"rules_version": "1"})
    timed, bare = record(store, evaluation), record(store, evaluation, None)
    summary = rejudge(store)
    point, low, high = measured_speedup(BLOCKS["eager"], BLOCKS["candidate"])
    assert (summary.speedups_changed, summary.without_raw_times) == (1, 1)
    assert summary.largest_speedup_change == pytest.approx(abs(point / 2 - 1))
    assert recent(store)[timed.id]["speedup_low"] == pytest.approx(low)
    assert recent(store)[bare.id]["speedup"] == 2.0
    exported = {row["request_id"]: row for row in DATASETS["evaluations"].rows(store, None)}
    assert exported[timed.id]["speedup_high"] == pytest.approx(high)
    assert exported[timed.id]["rules_version"] == exported[bare.id]["rules_version"] == "2"
    assert json.loads(exported[timed.id]["document"])["speedup"] == 2.0, "the document stays what it was"
    documents = {row["request_id"]: row for row in DATASETS["evaluations"].documents(store, None)}
    assert documents[timed.id]["verdict"]["baselines"][0]["speedup"] == pytest.approx(point)
    assert documents[bare.id]["verdict"]["baselines"] == []


@pytest.mark.usefixtures("stricter")
def test_rewards_of_trajectories_follow_when_asked(store: Store) -> None:
    evaluation = judged(touched=0.6).model_copy(
        update={"integrity": Integrity.CLEAN, "evidence": (), "rules_version": "1"}
    )
    request = record(store, evaluation)
    turn = Turn(number=1, prompt=(), completion="", kernel=request.kernel, evaluation=evaluation)
    trajectory = Trajectory(problem_hash=SOFTMAX.hash, turns=(turn,))
    store.add_trajectory("r", trajectory)
    rejudge(store)
    assert list(store.trajectories("r")) == [trajectory]
    (revised,) = store.trajectories("r", revised=True)
    found = revised.turns[0].evaluation
    assert found is not None
    assert (reward(evaluation), reward(found)) == (3.0, 0.0)
    assert found.timing is not None
    assert found.model_copy(update={"timing": None}) == evaluation.revised(rules.judge(evaluation)).model_copy(
        update={"timing": None}
    )
    (row,) = DATASETS["trajectories"].rows(store, "r")
    assert row["integrity"] == "suspicious"


@pytest.mark.usefixtures("stricter")
def test_what_does_not_suffice_is_left_alone(store: Store) -> None:
    probes = {probe: "" for probe in Probe if probe is not Probe.ABLATION}
    known = judged().model_copy(update={"rules_version": "1"})
    before_rules = record(store, an_evaluation(speedup=2.0))
    gap = known.model_copy(update={"observations": observed(probes=probes)})
    with_gap = record(store, gap)
    broken = record(store, known)
    with store.writing() as connection:
        connection.execute(text("UPDATE evaluations SET document = '{}' WHERE request_id = :it"), {"it": broken.id})
    summary = rejudge(store)
    assert (summary.examined, summary.lacking, summary.judged) == (3, 3, 0)
    assert {recent(store)[each.id]["integrity"] for each in (before_rules, with_gap)} == {"clean"}
    # A gap clears nobody, and hard evidence beside it still rejects.
    seen = (Evidence(code="D3", weight=Weight.HARD, detail="a subclass"),)
    caught = record(store, gap.model_copy(update={"observations": observed(probes=probes, seen=seen)}))
    assert rejudge(store).judged == 1
    assert recent(store)[caught.id]["integrity"] == "rejected"


def test_an_audit_that_comes_later_is_taken_into_account(store: Store) -> None:
    facts = an_evaluation(speedup=37.0, profile_ratio=1.0, protocol=Protocol(), observations=observed())
    large = record(store, facts.revised(rules.judge(facts)), None)
    assert rejudge(store).current == 1
    request = an_audit_request()
    store.record(request, an_audit_reply(request, an_audit()))
    summary = rejudge(store)
    assert summary.changes == {Change(Integrity.CLEAN, Integrity.CLEAN, (), ("G6",)): 1}
    assert rows(store, "SELECT rules_version FROM verdicts") == [(rules.version(an_audit()),)]
    assert recent(store)[large.id]["integrity"] == "clean"
    assert rejudge(store).current == 1


@pytest.mark.usefixtures("stricter")
def test_only_a_run_or_what_came_since(store: Store) -> None:
    evaluation = judged().model_copy(update={"rules_version": "1"})
    record(store, evaluation, run="a", second=1)
    record(store, evaluation, run="b", second=9)
    moment = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert rejudge(store, since=moment, dry_run=True).examined == 1
    assert rejudge(store, run="a", since=moment, dry_run=True).examined == 0
    assert rejudge(store, run="a").judged == 1
    assert rejudge(store).judged == 1
    with pytest.raises(BadInput, match="no run named `c`"):
        rejudge(store, run="c")


@pytest.mark.usefixtures("stricter")
def test_more_than_a_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drkernel_q.store.rejudge.PAGE", 2)
    for number in range(5):
        record(store, judged().model_copy(update={"rules_version": "1"}), source=str(number))
    assert rejudge(store).judged == store.status().rows["verdicts"] == 5


@pytest.mark.usefixtures("stricter")
def test_the_command(store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_STORE_URL", store_url)

    def drkq(*arguments: str) -> Result:
        return CliRunner().invoke(command, ["rejudge", *arguments], catch_exceptions=False)

    clean = judged(touched=0.6).model_copy(update={"integrity": Integrity.CLEAN, "evidence": (), "rules_version": "1"})
    record(store, clean)
    shown = drkq("--dry-run", "--since", "2025-12-31")
    assert shown.stdout.split() == ["from", "to", "codes", "evaluations", "clean", "suspicious", "+A6", "1"]
    assert "1 of 1 evaluations judged again, 1 verdicts changed" in shown.stderr
    document = json.loads(drkq("--json", "--rules", "current").stdout)
    assert document["changes"] == [
        {"before": "clean", "after": "suspicious", "gained": ["A6"], "lost": [], "evaluations": 1}
    ]
    assert (document["judged"], document["dry_run"]) == (1, False)
    assert "1 stand under these rules already" in drkq().stderr
    assert drkq("--rules", "1").exit_code == 2
