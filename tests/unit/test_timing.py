"""Statistics of timing, over simulated blocks whose true speedup is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.evaluation import Baseline
from workers import timing
from workers.timing import Plan, judge_clock, plan, speedup_interval, summarize

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


@pytest.fixture
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "RESAMPLES", 300)


@pytest.mark.usefixtures("fewer_resamples")
@pytest.mark.parametrize(
    ("blocks", "calls", "block_noise", "least", "most"),
    [
        (6, 18, 0.02, 0.92, 0.99),
        (6, 4, 0.02, 0.92, 1.0),
        (5, 10, 0.02, 0.92, 1.0),
        # Noise of single calls is counted twice (once by its block), so the interval is wide here, and never narrow.
        (6, 18, 0.0, 0.97, 1.0),
    ],
)
def test_the_interval_contains_the_truth(
    blocks: int, calls: int, block_noise: float, least: float, most: float
) -> None:
    generator = np.random.default_rng(0)
    runs = 300
    hits = 0
    for _ in range(runs):
        sides = simulate(generator, blocks=blocks, calls=calls, block_noise=block_noise)
        _, low, high = speedup_interval(*sides)
        hits += low <= 2.0 <= high
    assert least <= hits / runs <= most


@pytest.mark.usefixtures("fewer_resamples")
def test_equal_sides_have_a_speedup_of_one() -> None:
    generator = np.random.default_rng(1)
    points, certain = [], 0
    for _ in range(100):
        point, low, high = speedup_interval(*simulate(generator, speedup=1.0))
        points.append(point)
        certain += low > 1.0 or high < 1.0
    assert np.mean(points) == pytest.approx(1.0, abs=0.002)
    assert np.std(points) < 0.01
    assert certain <= 10, "of 100 kernels that are no faster, few may be called faster or slower"


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
        min_size=1,
        max_size=6,
    )
)
def test_the_estimate_lies_in_its_interval_and_turns_over(pairs: list[tuple[list[float], list[float]]]) -> None:
    reference, candidate = [first for first, _ in pairs], [second for _, second in pairs]
    point, low, high = speedup_interval(reference, candidate)
    assert 0 < low <= point <= high < np.inf
    assert (point, low, high) == speedup_interval(reference, candidate), "the same times give the same interval"
    turned, _, _ = speedup_interval(candidate, reference)
    assert turned == pytest.approx(1 / point)
    halved = [[time / 2 for time in block] for block in candidate]
    assert speedup_interval(reference, halved) == pytest.approx((2 * point, 2 * low, 2 * high))


def test_times_without_noise_leave_no_doubt() -> None:
    assert speedup_interval([[3.0] * 4] * 5, [[2.0] * 4] * 5) == pytest.approx((1.5, 1.5, 1.5))


@given(st.sampled_from(["cuda", "cpu"]), st.floats(1e-7, 1e3), st.floats(0.01, 600))
def test_a_plan_has_its_least_and_its_most(device: str, seconds_a_round: float, budget_s: float) -> None:
    counts = plan(device, seconds_a_round, budget_s)
    assert 3 <= counts.blocks <= 6
    assert counts.settle >= 1
    assert (4 <= counts.calls <= 18) if device == "cuda" else (2 <= counts.calls <= 10)
    spent_s = counts.blocks * (counts.calls + counts.settle) * seconds_a_round
    assert spent_s <= budget_s * 1.0001 or counts.blocks == 3, "beyond the budget only the fewest calls are made"


def test_a_plan_for_fast_slow_and_instant_calls() -> None:
    assert plan("cuda", 1e-4, 5.0) == Plan(blocks=6, calls=18, settle=2)
    assert plan("cuda", 0.1, 5.0) == Plan(blocks=6, calls=6, settle=2)
    assert plan("cuda", 10.0, 5.0) == Plan(blocks=3, calls=4, settle=1)
    assert plan("cpu", 10.0, 5.0) == Plan(blocks=3, calls=2, settle=1)
    assert plan("cpu", 0.0, 5.0).calls == 10


def test_the_summary_is_of_all_calls_and_the_first_baseline_is_the_headline() -> None:
    eager = [[4.0, 4.0, 4.4], [4.2, 4.2, 4.2]]
    compiled = [[3.0, 3.0, 3.0], [2.7, 2.7, 2.7]]
    candidate = [[2.0, 2.0, 2.0], [2.1, 2.1, 9.0]]
    result = summarize({Baseline.EAGER: eager, Baseline.COMPILE: compiled}, candidate, 3)
    assert (result.runs, result.blocks, result.checked) == (6, 2, 3)
    assert result.candidate_ms == pytest.approx(2.05)
    assert result.candidate_iqr_ms == pytest.approx(0.1)
    assert result.reference_ms == pytest.approx(4.2)
    assert result.speedup == pytest.approx(2.0)
    assert [row.baseline for row in result.baselines] == [Baseline.EAGER, Baseline.COMPILE]
    assert result.baselines[0].speedup == result.speedup
    assert result.baselines[0].speedup_low == result.speedup_low <= result.speedup <= result.speedup_high
    assert result.baselines[1].reference_ms == pytest.approx(2.85)
    assert result.baselines[1].speedup == pytest.approx(np.sqrt(1.5 * 2.7 / 2.1))
    assert result.drift == pytest.approx(0.1), "the largest drift of any baseline"


class Bursts:
    """A side whose calls take `call_ms`, and a request to it `request_ms`, with noise, on the judge's clock."""

    most_calls = 100

    def __init__(self, call_ms: float, *, request_ms: float = 0.0, noise: float = 0.0) -> None:
        self.call_ms = call_ms
        self.request_ms = request_ms
        self.noise = noise
        self.generator = np.random.default_rng(0)

    def burst(self, calls: int) -> float:
        milliseconds = self.request_ms + calls * self.call_ms
        return float(milliseconds * (1 + self.noise * self.generator.exponential()) / 1e3)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("call_ms", [0.05, 2.0, 50.0, 1000.0])
def test_the_judges_clock_leaves_out_what_a_call_does_not_cost(device: str, call_ms: float) -> None:
    overhead_ms = 1.5
    clock = judge_clock(Bursts(call_ms + overhead_ms, request_ms=20.0), Bursts(overhead_ms), device, call_ms)
    assert clock.median_ms == pytest.approx(call_ms)
    assert clock.least_ms == pytest.approx(call_ms)
    assert clock.noise_ms == pytest.approx(timing.FLOOR_NOISE_MS[device])


def test_the_judges_clock_never_runs_backwards() -> None:
    clock = judge_clock(Bursts(0.5), Bursts(1.0), "cuda", 0.1)
    assert (clock.median_ms, clock.least_ms) == (0.0, 0.0)


def test_the_judges_clock_says_how_far_it_may_be_off() -> None:
    quiet = judge_clock(Bursts(3.0), Bursts(1.0), "cuda", 2.0)
    noisy = judge_clock(Bursts(3.0), Bursts(1.0, noise=0.5), "cuda", 2.0)
    assert noisy.noise_ms > 2 * quiet.noise_ms
    assert noisy.least_ms <= noisy.median_ms


@pytest.mark.parametrize(("last", "drift"), [(1.0, 0.0), (1.1, 0.1), (0.5, 0.5)])
def test_drift_is_from_the_first_block_to_the_last(last: float, drift: float) -> None:
    blocks = [[1.0, 1.0, 8.0], [7.0, 7.0, 7.0], [last, last, last]]
    assert summarize({Baseline.EAGER: blocks}, blocks, 0).drift == pytest.approx(drift)
