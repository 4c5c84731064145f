"""The judge's own clock, over bursts whose times are known."""

import numpy as np
import pytest

from workers.clock import CHECKS, FLOOR_NOISE_MS, Clock, read_again, read_clock


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
    clock = read_clock(Bursts(call_ms + overhead_ms, request_ms=20.0), Bursts(overhead_ms), device, call_ms)
    assert clock.median_ms == pytest.approx(call_ms)
    assert clock.least_ms == pytest.approx(call_ms)
    assert clock.noise_ms == pytest.approx(FLOOR_NOISE_MS[device])


def test_the_judges_clock_never_runs_backwards() -> None:
    clock = read_clock(Bursts(0.5), Bursts(1.0), "cuda", 0.1)
    assert (clock.median_ms, clock.least_ms) == (0.0, 0.0)


def test_the_judges_clock_says_how_far_it_may_be_off() -> None:
    quiet = read_clock(Bursts(3.0), Bursts(1.0), "cuda", 2.0)
    noisy = read_clock(Bursts(3.0), Bursts(1.0, noise=0.5), "cuda", 2.0)
    assert noisy.noise_ms > 2 * quiet.noise_ms
    assert noisy.least_ms <= noisy.median_ms


@pytest.mark.parametrize(("claimed_ms", "hidden"), [(2.0, False), (1.9, False), (0.5, True), (0.0, True)])
def test_a_claim_may_lack_no_more_than_noise(claimed_ms: float, hidden: bool) -> None:
    clock = Clock(median_ms=2.0, least_ms=1.98, noise_ms=0.08)
    assert bool(clock.hidden_ms(claimed_ms, "cuda")) is hidden


def test_the_clock_is_read_until_it_agrees() -> None:
    honest, liar = Bursts(3.0), Bursts(9.0)
    assert len(list(read_again(honest, Bursts(1.0), "cuda", 2.0))) == 1
    readings = list(read_again(liar, Bursts(1.0), "cuda", 2.0))
    assert len(readings) == CHECKS
    assert readings[-1].hidden_ms(2.0, "cuda") == pytest.approx(6.0)
