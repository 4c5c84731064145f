"""From a judge to a revised verdict: evaluated on the cpu device, stored, and judged again by other rules."""

import pytest

from drkernel_q import rules
from drkernel_q.artefact import MAX_BYTES, pack
from drkernel_q.evaluation import Failure, Integrity
from drkernel_q.observation import Probe
from drkernel_q.speedup import measured_speedup
from drkernel_q.store import Store
from drkernel_q.store.query import ask
from drkernel_q.store.rejudge import Change, rejudge
from tests.judging import EXAMPLES, Bench, builtin
from tests.values import a_reply, a_request

pytestmark = pytest.mark.slow


def test_evaluated_stored_and_judged_again(bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, source = builtin("softmax"), (EXAMPLES / "softmax.py").read_text()
    judged = bench.judged(problem, source, trials=3, timing_budget_s=0.1)
    assert not isinstance(judged, Failure), judged
    evaluation = judged.evaluation
    assert (evaluation.integrity, evaluation.rules_version) == (Integrity.CLEAN, rules.RULES_VERSION)
    request = a_request(source, problem=problem)
    assert store.record(request, a_reply(request, evaluation).model_copy(update={"artefacts": judged.artefacts}))

    raw, timing, observed = store.artefacts(request.id), evaluation.timing, evaluation.observations
    assert raw is not None
    assert timing is not None
    assert observed is not None
    assert len(pack(raw)) < MAX_BYTES / 4
    assert set(raw.blocks) == {"eager", "candidate"}
    assert sum(map(len, raw.blocks["candidate"])) == timing.runs
    point = measured_speedup(raw.blocks["eager"], raw.blocks["candidate"])
    assert point == pytest.approx((timing.speedup, timing.speedup_low, timing.speedup_high))
    assert len(raw.seeds["weights"]) >= 2
    assert len(raw.seeds["trials"]) == 3
    assert len(raw.seeds["timed"]) == len(raw.late_ms["candidate"]) == observed.timed_calls
    assert {burst.side for burst in raw.bursts} == {"candidate", "empty"}
    assert raw.kernel_names["timed"] == raw.kernel_names["checked"] != ()
    assert raw.profile
    assert set(observed.probes) == set(Probe)

    assert rejudge(store).current == 1
    monkeypatch.setattr(rules, "RULES_VERSION", "9")
    monkeypatch.setattr(rules, "LEAST_TOUCHED", 1.1)
    summary = rejudge(store)
    assert (summary.judged, summary.speedups_changed) == (1, 0)
    assert summary.changes == {Change(Integrity.CLEAN, Integrity.SUSPICIOUS, ("A6",), ()): 1}
    with ask(store, "revised", {}) as answer:
        (row,) = [dict(zip(answer.columns, each, strict=True)) for each in answer.rows]
    assert (row["judged_by"], row["was"], row["revised_by"], row["integrity"]) == ("1", "clean", "9", "suspicious")
    assert row["speedup"] == pytest.approx(timing.speedup)
    found = store.find(request.id)
    assert found is not None
    assert found.evaluation == evaluation
