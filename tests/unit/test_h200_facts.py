"""The facts that were measured on an H200 and are kept here: what the judge said there of kernels of known quality."""

import json
import statistics
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.claims.kept import MEASURED, restore
from drkernel_q import rules
from drkernel_q.curriculum import Quality, generate
from drkernel_q.evaluation import Evaluation, Integrity, Outcome
from drkernel_q.reward import reward
from drkernel_q.store import Store
from drkernel_q.store.fact_file import import_facts
from drkernel_q.store.facts import load
from tests.values import H200

FACTS = Path(__file__).parents[2] / "benchmarks" / "facts" / "h200.parquet"


@pytest.fixture(scope="module")
def facts() -> dict[str, list[Evaluation]]:
    """Evaluations by the quality of the kernel; by `written` those of kernels that a small model wrote.

    Those of matrix products have a name of their own: torch's own product is hard to beat, and has TF32's speed.
    """
    known = {
        (exercise.problem.hash, solution.kernel.source): ("product " if exercise.level == 3 else "") + solution.quality
        for exercise in generate(0, 40)
        for solution in exercise.solutions
    }
    found: dict[str, list[Evaluation]] = defaultdict(list)
    for row in pq.read_table(FACTS).to_pylist():
        quality = known.get((row["problem_hash"], row["kernel_source"]), "written")
        found[quality].append(load(json.loads(row["document"])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("file", "count"), [(FACTS, 413), (MEASURED, 1529)])
def test_they_are_imported_as_facts_of_their_device(store: Store, file: Path, count: int) -> None:
    done = import_facts(store, file)
    assert (done.added, done.device_kinds) == (count, (H200,))


@pytest.mark.parametrize("kind", ["", "product "])
def test_the_judge_told_good_kernels_from_bad_ones(facts: dict[str, list[Evaluation]], kind: str) -> None:
    outcomes = {quality: {each.outcome for each in facts[f"{kind}{quality}"]} for quality in Quality}
    assert outcomes[Quality.BROKEN] == {Outcome.COMPILE_ERROR, Outcome.RUNTIME_ERROR}
    assert outcomes[Quality.EDGE] == outcomes[Quality.WRONG] == {Outcome.WRONG_VALUE}
    decoys = facts[f"{kind}{Quality.DECOY}"]
    assert {each.integrity for each in decoys} == {Integrity.REJECTED}
    assert not any(reward(each) for each in decoys)
    for quality in (Quality.FUSED, Quality.PARTIAL, Quality.LAZY, Quality.NAIVE):
        assert facts[f"{kind}{quality}"]
        assert all(each.honest_and_correct for each in facts[f"{kind}{quality}"])


def test_fused_kernels_are_fast_and_lazy_ones_do_little(facts: dict[str, list[Evaluation]]) -> None:
    for fused in facts[Quality.FUSED.value]:
        assert fused.speedup is not None
        assert fused.speedup > 1.1
        assert fused.profile_ratio == pytest.approx(1.0, abs=0.01)
    speedups = [lazy.speedup for lazy in facts[Quality.LAZY.value] if lazy.speedup is not None]
    assert statistics.median(speedups) == pytest.approx(1.0, abs=0.02)
    assert sum(abs(speedup - 1.0) > 0.05 for speedup in speedups) == 2
    for lazy in facts[Quality.LAZY.value]:
        assert lazy.speedup == pytest.approx(1.0, abs=0.15)
        assert lazy.profile_ratio is not None
        assert lazy.profile_ratio < 0.7


def test_the_rules_of_today_come_to_the_same(facts: dict[str, list[Evaluation]]) -> None:
    for evaluations in facts.values():
        for evaluation in evaluations:
            assert evaluation.revised(rules.judge(evaluation)) == evaluation


def test_what_a_policy_wrote_is_what_its_quality_says(tmp_path: Path) -> None:
    """The facts that the claims are trained on are of the kernels that are kept beside the policy."""
    restore(tmp_path / "kept")
    lines = (tmp_path / "kept" / "kernels.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {(row["problem_source"], row["kernel_source"]): row["quality"] for row in map(json.loads, lines)}
    found: dict[str | None, list[Evaluation]] = defaultdict(list)
    for fact in pq.read_table(MEASURED).to_pylist():
        found[rows[fact["problem_source"], fact["kernel_source"]]].append(load(json.loads(fact["document"])))
    for quality in (Quality.FUSED, Quality.PARTIAL, Quality.LAZY, Quality.NAIVE):
        assert found[quality]
        assert all(each.honest_and_correct for each in found[quality])
    assert all(each.speedup is not None and each.speedup > 1.2 for each in found[Quality.FUSED])
    assert {each.integrity for each in found[Quality.DECOY]} == {Integrity.REJECTED}
    for quality in (Quality.BROKEN, Quality.EDGE, Quality.WRONG):
        assert {each.outcome for each in found[quality]} <= {
            Outcome.COMPILE_ERROR,
            Outcome.RUNTIME_ERROR,
            Outcome.WRONG_VALUE,
        }
    for evaluation in (each for some in found.values() for each in some):
        assert evaluation.revised(rules.judge(evaluation)) == evaluation
