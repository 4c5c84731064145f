"""Rewards: computed from facts alone, and following the verdict that these carry."""

import pytest

from drkernel_q.correctness import Correctness
from drkernel_q.evaluation import Integrity, Verdict
from drkernel_q.observation import Evidence, Weight
from drkernel_q.reward import RewardConfig, reward
from drkernel_q.rules import judge
from tests.values import an_audit, an_evaluation, observed


@pytest.mark.parametrize(
    ("outcome", "integrity", "speedup", "ratio", "expected"),
    [
        ("correct", "clean", 2.0, 0.5, 2.0),
        ("correct", "clean", 9.0, 1.0, 4.0),
        ("correct", "clean", 2.0, None, 1.0),
        ("correct", "suspicious", 2.0, 1.0, 0.0),
        ("correct", "unknown", 2.0, 1.0, 0.0),
        ("wrong_value", "unknown", 2.0, 1.0, 0.0),
    ],
)
def test_a_reward_is_for_what_is_correct_and_clean(
    outcome: str, integrity: str, speedup: float, ratio: float | None, expected: float
) -> None:
    assert reward(an_evaluation(outcome, integrity, speedup=speedup, profile_ratio=ratio)) == pytest.approx(expected)


def test_a_reward_follows_the_verdict() -> None:
    evaluation = an_evaluation(speedup=2.0, profile_ratio=1.0)
    seen = (Evidence(code="D10", weight=Weight.HARD, detail="seen later"),)
    rejected = evaluation.revised(Verdict(rules_version="2", integrity=Integrity.REJECTED, evidence=seen))
    assert (reward(evaluation), reward(rejected)) == (3.0, 0.0)
    assert rejected.timing == evaluation.timing
    faster = tuple(row.model_copy(update={"speedup": 2.5}) for row in evaluation.timing.baselines)  # type: ignore[union-attr]
    sped = evaluation.revised(Verdict(rules_version="2", integrity=Integrity.CLEAN, baselines=faster))
    assert (reward(sped), sped.speedup) == (3.5, 2.5)


def test_a_speed_that_needs_an_audit_earns_nothing_until_then() -> None:
    evaluation = an_evaluation(speedup=37.0, profile_ratio=1.0, protocol={}, observations=observed())
    assert reward(evaluation.revised(judge(evaluation))) == 1.0
    assert reward(evaluation, RewardConfig(speed_weight=0.0)) == 1.0
    assert reward(evaluation.revised(judge(evaluation)), audit=an_audit()) == 4.0


def test_speed_on_a_worthless_problem_earns_nothing_and_correctness_does() -> None:
    fast = an_evaluation(speedup=2.0, profile_ratio=0.5)
    assert reward(fast) == reward(fast, audit=an_audit()) == 2.0
    assert reward(fast, audit=an_audit(zeros_pass=True)) == 1.0
    assert reward(fast, RewardConfig(speed_weight=3.0), an_audit(reference_ms=0.001)) == 4.0
    assert reward(an_evaluation("wrong_value", speedup=2.0, profile_ratio=0.5), audit=an_audit()) == 0.0


def test_a_speed_bought_with_precision_earns_nothing_unless_the_class_is_allowed() -> None:
    shown = Correctness(trials=5, passed=5, precision_class="tf32", downgraded=True)
    coarse = an_evaluation(speedup=2.0, profile_ratio=1.0, correctness=shown)
    assert reward(coarse) == 1.0
    assert reward(coarse, RewardConfig(allow_downgrade=("tf32",))) == 3.0
    assert reward(coarse, RewardConfig(allow_downgrade=("fp16", "bf16"))) == 1.0
    asked = shown.model_copy(update={"downgraded": False})
    assert reward(an_evaluation(speedup=2.0, profile_ratio=1.0, correctness=asked)) == 3.0, "the problem asks for TF32"
