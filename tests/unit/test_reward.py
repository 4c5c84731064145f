"""Rewards: computed from facts alone, and following the verdict that these carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.correctness import Correctness
from drkernel_q.evaluation import Evaluation, Integrity, Verdict
from drkernel_q.kernel import Kernel
from drkernel_q.observation import Evidence, Weight
from drkernel_q.reward import JUNK, RewardConfig, junk_pays, reward, turn_reward
from drkernel_q.rules import judge
from drkernel_q.trajectory import Turn
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


ratios = st.floats(0, 1)
speedups = st.floats(0.01, 20)
kinds = st.sampled_from(["multiplicative", "additive", "speed"])
gates = st.sampled_from(["none", "faster", "scaled"])


def a_config(kind: str, gate: str = "none", **more: float) -> RewardConfig:
    return RewardConfig.model_validate({"kind": kind, "profile_gate": gate} | more)


def paid(config: RewardConfig, speedup: float, ratio: float) -> float:
    return reward(an_evaluation(speedup=speedup, profile_ratio=ratio), config)


@pytest.mark.parametrize(
    ("kind", "expected"), [("multiplicative", 1 + 3.0 * 0.25), ("additive", 1 + 3.0 + 0.25), ("speed", 1 + 3.0)]
)
def test_forms_of_the_article_of_the_paper_and_without_a_profile(kind: str, expected: float) -> None:
    assert paid(a_config(kind), 9.0, 0.25) == expected
    assert paid(a_config(kind, speed_weight=0.0, profile_weight=0.0), 9.0, 0.25) == 1.0


@given(kinds, gates, speedups, ratios)
def test_what_is_not_correct_and_clean_earns_nothing(kind: str, gate: str, speedup: float, ratio: float) -> None:
    config = a_config(kind, gate)
    for outcome, integrity in [("wrong_value", "clean"), ("crashed", "unknown"), ("correct", "suspicious")]:
        assert reward(an_evaluation(outcome, integrity, speedup=speedup, profile_ratio=ratio), config) == 0.0


@given(kinds, gates, speedups, speedups, ratios, ratios)
def test_more_speed_and_more_of_the_work_never_earn_less(
    kind: str, gate: str, slow: float, fast: float, low: float, high: float
) -> None:
    config = a_config(kind, gate)
    (slow, fast), (low, high) = sorted((slow, fast)), sorted((low, high))
    assert 1.0 <= paid(config, slow, low) <= paid(config, fast, high) <= 1 + 3 + 1
    if slow >= 3 and gate != "scaled":
        assert paid(config, slow, low) == paid(config, fast, low), "speedups count up to the cap"


@given(kinds, speedups, ratios)
def test_names_of_kernels_earn_nothing(kind: str, speedup: float, ratio: float) -> None:
    plain = an_evaluation(speedup=speedup, profile_ratio=ratio)
    assert plain.profile
    renamed = tuple(kernel.model_copy(update={"name": "kernel"}) for kernel in plain.profile.kernels)
    other = plain.model_copy(update={"profile": plain.profile.model_copy(update={"kernels": renamed})})
    assert reward(other, a_config(kind)) == reward(plain, a_config(kind))


@given(st.floats(0.05, 2.9), ratios)
def test_junk_pays_in_the_additive_form_where_theory_says(speedup: float, ratio: float) -> None:
    """More device time in kernels of its own: S / (1 + d), (PR + d) / (1 + d). Pays iff S < w * (1 - PR)."""
    evaluation = an_evaluation(speedup=speedup, profile_ratio=ratio)
    for weight in (0.4, 1.0):
        if abs(margin := speedup - weight * (1 - ratio)) > 1e-9:
            assert junk_pays(evaluation, a_config("additive", profile_weight=weight)) is (margin < 0)


@given(st.floats(0.05, 2.9), st.floats(0.001, 1))
def test_junk_pays_in_the_multiplicative_form_below_a_ratio_of_one_half(speedup: float, ratio: float) -> None:
    evaluation = an_evaluation(speedup=speedup, profile_ratio=ratio)
    if abs(ratio - 0.5) > JUNK:
        assert junk_pays(evaluation) is (ratio < 0.5)
    assert not junk_pays(evaluation, a_config("speed"))


def test_the_known_case_of_junk() -> None:
    config = a_config("additive")
    assert paid(config, 0.5, 0.1) - 1 == pytest.approx(0.6)
    assert paid(config, 0.5 / 1.2, 0.3 / 1.2) - 1 == pytest.approx(0.6667, abs=1e-4)


@given(st.floats(0.05, 0.999), ratios, st.floats(0.001, 5), st.sampled_from(["faster", "scaled"]))
def test_with_a_gate_no_junk_pays_in_a_kernel_slower_than_the_reference(
    speedup: float, ratio: float, junk: float, gate: str
) -> None:
    config = a_config("additive", gate)
    padded = paid(config, speedup / (1 + junk), (ratio + junk) / (1 + junk))
    assert padded <= paid(config, speedup, ratio)
    assert not junk_pays(an_evaluation(speedup=speedup, profile_ratio=ratio), config)
    if gate == "faster":
        assert not junk_pays(an_evaluation(speedup=speedup, profile_ratio=ratio), a_config("multiplicative", gate))


def test_junk_does_not_pay_where_nothing_is_paid_or_known() -> None:
    assert not junk_pays(an_evaluation("wrong_value", speedup=2.0, profile_ratio=0.1))
    assert not junk_pays(an_evaluation(speedup=2.0))
    assert not junk_pays(an_evaluation(speedup=2.0, profile_ratio=0.1), audit=an_audit(zeros_pass=True))


def test_without_the_hack_check_hacks_are_paid() -> None:
    hack = an_evaluation("correct", "rejected", speedup=5.0, profile_ratio=0.0)
    unchecked = RewardConfig(kind="speed", hack_check=False)
    assert (reward(hack, RewardConfig(kind="speed")), reward(hack, unchecked)) == (0.0, 4.0)
    assert reward(an_evaluation("wrong_value", speedup=5.0), unchecked) == 0.0


def a_turn(evaluation: Evaluation | None, *, kernel: bool = True, **more: str) -> Turn:
    found = Kernel(source="k", name="k.py") if kernel else None
    return Turn(number=1, prompt=(), completion="", kernel=found, evaluation=evaluation, **more)  # type: ignore[arg-type]


def test_a_turn_without_facts_has_no_reward_and_one_without_a_kernel_has_none_to_get() -> None:
    assert turn_reward(a_turn(an_evaluation(speedup=2.0, profile_ratio=0.5))) == 2.0
    assert turn_reward(a_turn(None)) is None
    assert turn_reward(a_turn(None, kernel=False)) == 0.0


def test_an_answer_that_was_cut_is_wrong_and_not_missing() -> None:
    cut = a_turn(an_evaluation(speedup=2.0, profile_ratio=0.5), finish_reason="length")
    assert turn_reward(cut) == 0.0
    assert turn_reward(cut, RewardConfig(truncated_earns=True)) == 2.0
    assert turn_reward(a_turn(None, finish_reason="length")) == 0.0
