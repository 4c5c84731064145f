"""The interval of a speedup, over simulated blocks whose true speedup is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.speedup import measured_speedup, speedup_interval, student_t

Blocks = list[list[float]]
TIMES = st.floats(1e-3, 1e4)


def simulate(
    generator: np.random.Generator,
    *,
    speedup: float = 2.0,
    blocks: int = 6,
    calls: int = 18,
    drift: float = 0.01,
    block_noise: float = 0.005,
    call_noise: float = 0.02,
    outliers: float = 0.02,
) -> tuple[Blocks, Blocks]:
    """Times of both sides: a drift that they share, noise of each block and each call, and some slow calls."""
    shared = np.exp(np.cumsum(generator.normal(0, drift, blocks)))[:, None]

    def side(milliseconds: float) -> Blocks:
        times = milliseconds * shared * np.exp(generator.normal(0, block_noise, (blocks, 1)))
        times = times * np.exp(generator.normal(0, call_noise, (blocks, calls)))
        slow = np.where(generator.random((blocks, calls)) < outliers, generator.uniform(1.5, 10, (blocks, calls)), 1.0)
        return [list(map(float, row)) for row in times * slow]

    return side(speedup), side(1.0)


@pytest.mark.parametrize(
    ("blocks", "calls", "block_noise"), [(6, 18, 0.02), (6, 4, 0.02), (3, 4, 0.02), (5, 10, 0.02), (9, 18, 0.0)]
)
def test_the_interval_contains_the_truth(blocks: int, calls: int, block_noise: float) -> None:
    """19 times of 20, whether blocks or only calls are noisy, and however few there are."""
    generator = np.random.default_rng(0)
    runs = 600
    hits = 0
    for _ in range(runs):
        sides = simulate(generator, blocks=blocks, calls=calls, block_noise=block_noise)
        _, low, high = speedup_interval(*sides)
        hits += low <= 2.0 <= high
    assert 0.925 <= hits / runs <= 0.975


def test_equal_sides_have_a_speedup_of_one() -> None:
    generator = np.random.default_rng(1)
    points, certain = [], 0
    for _ in range(100):
        point, low, high = speedup_interval(*simulate(generator, speedup=1.0))
        points.append(point)
        certain += low > 1.0 or high < 1.0
    assert np.mean(points) == pytest.approx(1.0, abs=0.002)
    assert np.std(points) < 0.01
    assert 1 <= certain <= 12, "of 100 kernels that are no faster, few may be called faster or slower"


def test_a_drift_that_both_sides_share_does_not_matter() -> None:
    generator = np.random.default_rng(2)
    reference, candidate = simulate(generator, drift=0.0, block_noise=0.0, outliers=0.0, call_noise=0.002)
    factors = [1.0, 1.5, 0.7, 2.0, 1.0, 0.5]
    slowed = [
        [[time * factor for time in block] for block, factor in zip(side, factors, strict=True)]
        for side in (reference, candidate)
    ]
    point, low, high = speedup_interval(slowed[0], slowed[1])
    assert point == pytest.approx(2.0, rel=0.002)
    assert high / low < 1.01


def test_slow_calls_and_a_lost_block_do_not_move_the_estimate() -> None:
    generator = np.random.default_rng(3)
    reference, candidate = simulate(generator, drift=0.0, block_noise=0.001, outliers=0.0)
    before, _, _ = speedup_interval(reference, candidate)
    for block in candidate:
        block[:5] = [time * 100 for time in block[:5]]
    candidate[2] = [time * 50 for time in candidate[2]]
    after, low, _ = speedup_interval(reference, candidate)
    assert after == pytest.approx(before, rel=0.02)
    assert low < after


@given(
    st.lists(
        st.tuples(st.lists(TIMES, min_size=1, max_size=6), st.lists(TIMES, min_size=1, max_size=6)),
        min_size=2,
        max_size=6,
    )
)
def test_the_estimate_lies_in_its_interval_and_turns_over(pairs: list[tuple[list[float], list[float]]]) -> None:
    reference, candidate = [first for first, _ in pairs], [second for _, second in pairs]
    point, low, high = speedup_interval(reference, candidate)
    assert 0 < low <= point <= high < np.inf
    assert speedup_interval(candidate, reference) == pytest.approx((1 / point, 1 / high, 1 / low))
    halved = [[time / 2 for time in block] for block in candidate]
    assert speedup_interval(reference, halved) == pytest.approx((2 * point, 2 * low, 2 * high))


def test_times_without_noise_leave_no_doubt() -> None:
    assert speedup_interval([[3.0] * 4] * 5, [[2.0] * 4] * 5) == pytest.approx((1.5, 1.5, 1.5))


def test_fresh_processes_differ_by_more_than_calls_do() -> None:
    steady = [[0.14] * 18] * 6
    speedup, low, high = measured_speedup(steady, steady)
    assert speedup == 1.0
    assert (low, high) == pytest.approx((1 - 0.0051, 1 + 0.0051), abs=1e-4), "half a percent at 140 us"
    short = [[0.01] * 18] * 6
    assert measured_speedup(short, short).high == pytest.approx(1.018, abs=1e-3), "two percent at 10 us"
    generator = np.random.default_rng(4)
    sides = simulate(generator, block_noise=0.05)
    within, real = speedup_interval(*sides), measured_speedup(*sides)
    assert real.low < within.low < within.high < real.high
    assert real.high / within.high < 1.001, "where blocks are noisy anyway it hardly matters"


def test_one_block_says_nothing_and_blocks_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="two blocks"):
        speedup_interval([[3.0] * 18], [[2.0] * 18])
    with pytest.raises(ValueError, match="shorter"):
        speedup_interval([[3.0]] * 3, [[2.0]] * 2)


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (5, 2.5706), (11, 2.2010), (17, 2.1098), (30, 2.0423)])
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, abs=2e-4)
