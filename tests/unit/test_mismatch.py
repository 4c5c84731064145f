"""MRS: what it keeps, and that only the sampled tokens decide, in enough digits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.method.mismatch import LogRatios, MismatchConfig, decide, log_ratios, telemetry

logs = st.floats(-0.004, 0.004)
turns = st.lists(st.lists(logs, min_size=1, max_size=8), min_size=1, max_size=4)
CONFIG = MismatchConfig()
BAND = math.log(1.001)


def arrays(rows: list[list[float]]) -> list[LogRatios]:
    return [np.array(row, dtype=np.float64) for row in rows]


def kept(rows: list[list[float]], config: MismatchConfig = CONFIG) -> list[bool]:
    return [each.kept for each in decide(arrays(rows), config)]


def test_equal_log_probabilities_are_kept() -> None:
    same = np.log([0.5, 0.1, 1e-9])
    (found,) = decide([log_ratios(same, same)])
    assert found == (True, 0.0, 3, False, False, False)


@given(turns)
def test_the_band_is_symmetric(rows: list[list[float]]) -> None:
    assert kept(rows) == kept([[-value for value in row] for row in rows])


@given(st.floats(-0.01, 0.01), st.integers(1, 3000))
def test_a_constant_shift_is_judged_alike_at_any_length(shift: float, length: int) -> None:
    (found,) = decide([np.full(length, shift)])
    assert found.kept == (abs(shift) <= BAND)
    assert found.mean == pytest.approx(shift, rel=1e-12)


@given(turns, st.sampled_from([math.nan, math.inf, -math.inf, -99.0]))
def test_masked_tokens_may_be_anything(rows: list[list[float]], junk: float) -> None:
    sampled = np.array([value for row in rows for value in row])
    trained = np.zeros_like(sampled)
    mask = np.array([True, False] * len(sampled))
    mixed = np.stack([sampled, np.full_like(sampled, junk)], axis=1).ravel()
    ratios = log_ratios(np.stack([trained, np.full_like(trained, junk)], axis=1).ravel(), mixed, mask)
    assert decide([ratios]) == decide([log_ratios(trained, sampled)])


@pytest.mark.parametrize(("over", "vetoed"), [(1e-6, False), (-1e-6, True)])
def test_one_token_vetoes_though_the_mean_is_in_the_band(over: float, vetoed: bool) -> None:
    low = math.log(1e-4) + over
    tail = [-low / 9] * 9
    (found,) = decide(arrays([[low, *tail]]))
    assert (found.outside, found.vetoed, found.kept) == (False, vetoed, not vetoed)
    assert kept([[low, *tail]], MismatchConfig(eta=0)) == [True]
    both = kept([[low, *tail], [0.0]])
    assert both == [not vetoed, not vetoed], "the veto has the scope of the band"
    assert kept([[low, *tail], [0.0]], MismatchConfig(scope="turn")) == [not vetoed, True]


@given(turns, st.floats(1, 1.01), st.floats(0, 0.01), st.floats(0, 1), st.floats(0, 1))
def test_looser_bounds_keep_no_less(rows: list[list[float]], beta: float, more: float, eta: float, less: float) -> None:
    tight, loose = MismatchConfig(beta=beta, eta=eta), MismatchConfig(beta=beta + more, eta=eta * less)
    assert all(b or not a for a, b in zip(kept(rows, tight), kept(rows, loose), strict=True))


@given(turns)
def test_half_precision_is_refused_and_single_agrees_with_double(rows: list[list[float]]) -> None:
    sampled = np.array([value - 2 for row in rows for value in row])
    trained = np.full_like(sampled, -2)
    with pytest.raises(ValueError, match="32 bits"):
        log_ratios(trained.astype(np.float16), sampled)
    (double,) = decide([log_ratios(trained, sampled)])
    (single,) = decide([log_ratios(trained.astype(np.float32), sampled.astype(np.float32))])
    assert single.mean == pytest.approx(double.mean, abs=1e-6)
    if abs(abs(double.mean) - BAND) > 1e-6:
        assert single.kept == double.kept


@given(turns, st.data())
def test_a_trajectory_is_one_unit_however_it_is_cut(rows: list[list[float]], data: st.DataObject) -> None:
    (first, *rest) = decide(arrays(rows))
    assert all(each == first for each in rest)
    flat = [value for row in rows for value in row]
    assert decide(arrays([flat])) == [first]
    shuffled = data.draw(st.permutations(rows))
    assert decide(arrays(shuffled))[0] == first
    assert first.tokens == len(flat)


@given(turns)
def test_pooled_tokens_are_not_a_mean_of_means(rows: list[list[float]]) -> None:
    found = decide(arrays(rows))[0]
    assert found.mean == pytest.approx(np.mean([value for row in rows for value in row]), rel=1e-9, abs=1e-15)


@given(turns, st.floats(1.0001, 1.003))
def test_decisions_equal_those_of_the_public_formulas(rows: list[list[float]], beta: float) -> None:
    flat = np.array([value for row in rows for value in row])
    ratio = float(np.exp(flat.mean()))
    if abs(abs(flat.mean()) - math.log(beta)) < 1e-12:
        return
    geometric = 1 / beta <= ratio <= beta and bool((np.exp(flat) >= 1e-4).all())
    k1 = -math.log(beta) <= float(-flat.mean()) <= math.log(beta)
    expected = [geometric] * len(rows)
    assert kept(rows, MismatchConfig(beta=beta)) == expected
    assert k1 == expected[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_rejects_and_is_counted(value: float) -> None:
    found = decide([np.array([0.0, value]), np.array([0.0])])
    assert [(each.kept, each.nonfinite) for each in found] == [(False, True)] * 2
    lost = decide([log_ratios([value], [value])])[0]
    assert lost.nonfinite
    assert not lost.kept
    assert decide([np.array([])])[0].nonfinite


def test_switched_off_it_keeps_everything_and_says_what_it_would_not() -> None:
    (found,) = decide([np.array([0.1])], MismatchConfig(enabled=False))
    assert (found.kept, found.outside) == (True, True)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes"):
        log_ratios([0.0, 0.0], [0.0])


def test_telemetry() -> None:
    ratios = arrays([[0.0] * 300, [0.01] * 10, [math.log(1e-5), 0.0], [math.nan]])
    units = [decide([each])[0] for each in ratios]
    sampled = np.full(313, -1.0)
    found = telemetry(units, sampled + np.concatenate(ratios), sampled)
    assert (found["mrs/acceptance"], found["mrs/veto"], found["mrs/nonfinite"]) == (0.25, 0.25, 1.0)
    assert found["mrs/empty_batch"] == 0.0
    assert (found["mrs/acceptance/0-256"], found["mrs/acceptance/256-1024"]) == (0.0, 1.0)
    finite = np.concatenate(ratios[:3])
    assert found["mrs/k1"] == pytest.approx(-finite.mean())
    assert found["mrs/k3"] == pytest.approx((np.exp(finite) - 1 - finite).mean())
    assert found["mrs/chi2"] == pytest.approx((np.exp(finite) ** 2).mean() - 1)
    assert 0 < found["mrs/ess"] <= 1
    assert found["mrs/ppl_sampler"] == pytest.approx(math.e)
    assert found["mrs/ppl_train"] == pytest.approx(math.exp(1 - finite.mean()))
    assert telemetry([units[1]], sampled[:10], sampled[:10])["mrs/empty_batch"] == 1.0
