"""PRS: its probabilities, its gate, and draws that belong to a turn."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.method.laziness import LazinessConfig, decide, draw, keep_probability
from policy.method.mismatch import MismatchConfig, log_ratios
from policy.method.mismatch import decide as decide_mismatch
from tests.values import an_evaluation

EXP, LINEAR = LazinessConfig(), LazinessConfig(kind="linear")
ratios = st.floats(0, 1)


@given(ratios, ratios, st.sampled_from(["exp", "linear"]), st.floats(0, 1), st.floats(0, 1))
def test_a_probability_that_grows_with_the_ratio(low: float, high: float, kind: str, tau: float, sigma: float) -> None:
    config = LazinessConfig.model_validate({"kind": kind, "tau": tau, "sigma": sigma})
    low, high = sorted((low, high))
    assert 0 <= keep_probability(low, config) <= keep_probability(high, config) <= 1
    if kind == "exp":
        assert (keep_probability(high, config) == 1) or high < tau
    elif low <= tau:
        assert keep_probability(low, config) == 0


def test_the_article_and_the_released_code() -> None:
    table = {0.0: (0.0498, 0), 0.2: (0.368, 0), 0.3: (1, 0), 0.35: (1, 0.5), 0.4: (1, 1), 1.0: (1, 1)}
    for ratio, (soft, straight) in table.items():
        assert keep_probability(ratio, EXP) == pytest.approx(soft, abs=5e-4)
        assert keep_probability(ratio, LINEAR) == pytest.approx(straight, abs=1e-9)
    assert keep_probability(0.3 - 0.1, EXP) == pytest.approx(math.exp(-1))
    assert keep_probability(0.3 - 1e-9, EXP) == pytest.approx(1, abs=1e-7), "continuous at tau"


@pytest.mark.parametrize(("kind", "at_tau"), [("exp", 1.0), ("linear", 0.0)])
def test_no_softness_is_a_threshold(kind: str, at_tau: float) -> None:
    hard = LazinessConfig.model_validate({"kind": kind, "sigma": 0})
    soft = LazinessConfig.model_validate({"kind": kind, "sigma": 1e-9})
    for ratio, expected in {0.29: 0.0, 0.3: at_tau, 0.31: 1.0}.items():
        assert keep_probability(ratio, hard) == keep_probability(ratio, soft) == expected


def test_only_correct_and_honest_kernels_can_be_lazy() -> None:
    config = LazinessConfig(sigma=0)
    assert not decide(an_evaluation(profile_ratio=0.1), 1, "a", 1, config).kept
    for other in (
        an_evaluation("wrong_value", profile_ratio=0.1),
        an_evaluation("correct", "rejected", profile_ratio=0.0),
        None,
    ):
        found = decide(other, 1, "a", 1, config)
        assert (found.probability, found.kept, found.missing) == (1.0, True, False)
    unknown = decide(an_evaluation(), 1, "a", 1, config)
    assert (unknown.kept, unknown.missing) == (True, True)
    assert decide(an_evaluation(profile_ratio=0.1), 1, "a", 1, LazinessConfig(enabled=False)).kept


def test_draws_are_uniform_and_rates_are_as_said() -> None:
    count = 100_000
    drawn = [draw(11, f"b2:0f/{i // 3}", i % 3 + 1) for i in range(count)]
    assert all(0 <= value < 1 for value in drawn)
    for ratio in (0.0, 0.2, 0.28):
        probability = keep_probability(ratio, EXP)
        error = math.sqrt(probability * (1 - probability) / count)
        assert sum(value < probability for value in drawn) / count == pytest.approx(probability, abs=4 * error)
    deciles = [sum(i <= 10 * value < i + 1 for value in drawn) for i in range(10)]
    assert sum((n - count / 10) ** 2 / (count / 10) for n in deciles) < 30, "chi squared, 9 degrees of freedom"
    neighbours = itertools.pairwise(drawn)
    assert sum((a - 0.5) * (b - 0.5) for a, b in neighbours) / count == pytest.approx(0, abs=4 / 12 / math.sqrt(count))


@given(st.integers(), st.text(max_size=8), st.integers(1, 9))
def test_a_draw_belongs_to_seed_trajectory_and_turn(seed: int, trajectory: str, turn: int) -> None:
    mine = draw(seed, trajectory, turn)
    assert mine == draw(seed, trajectory, turn)
    assert (
        len(
            {
                mine,
                draw(seed + 1, trajectory, turn),
                draw(seed, trajectory + "'", turn),
                draw(seed, trajectory, turn + 1),
            }
        )
        == 4
    )


def test_draws_are_the_same_in_every_version() -> None:
    """A stored run is resumed by a later release."""
    assert draw(0, "b2:00/1", 1) == pytest.approx(0.09305533991076509, rel=1e-15)


@given(ratios, st.floats(-0.002, 0.002))
def test_neither_rejection_depends_on_the_other(ratio: float, shift: float) -> None:
    evaluation = an_evaluation(profile_ratio=ratio)
    mismatch = decide_mismatch([log_ratios([shift], [0.0])], MismatchConfig())[0].kept
    lazy = decide(evaluation, 5, "a", 1).kept
    again = decide_mismatch([log_ratios([shift], [0.0])], MismatchConfig())[0].kept
    assert (lazy and mismatch) == (again and decide(evaluation, 5, "a", 1).kept)
