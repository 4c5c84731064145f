"""Distances and sizes of outputs, held against the plain formulas."""

import math

import pytest
import torch

from workers.comparison import distance as measured
from workers.comparison import measure


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "CHUNK", 100)
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (7,), (37, 11), (3, 5, 60), (0, 4)])
def test_distance_and_moments_are_the_plain_formulas(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    base, other = torch.randn(shape).to(dtype) + 1, torch.randn(shape).to(dtype)
    wide = torch.view_as_real(base).double() if dtype.is_complex else base.double()
    apart = torch.view_as_real(other).double() - wide if dtype.is_complex else other.double() - wide
    if not base.numel():
        assert measured.distance(base, other) == 0
        assert measured.moments([base]) == (None, None)
        return
    assert measured.distance(base, other) == pytest.approx(float(apart.norm() / wide.norm()))
    rms, std = measured.moments([base, base])
    assert rms == pytest.approx(float(wide.square().mean().sqrt()))
    assert std == pytest.approx(float(wide.std(correction=0)), abs=1e-7)


def test_whole_numbers_differ_by_their_share() -> None:
    assert measured.distance(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4])) == 0.25
    assert measured.distance(torch.tensor([True]), torch.tensor([False])) == 1.0


def test_what_is_not_finite_has_no_distance_and_no_size() -> None:
    broken = [torch.tensor([1.0, math.nan])]
    assert measured.spread(broken, [torch.ones(2)]) is None
    assert measured.moments(broken) == (None, None)
    assert measured.spread([torch.ones(2)], [torch.ones(3)]) is None, "of other shapes"
    assert measured.spread([torch.zeros(2)], [torch.ones(2)]) == 1.0
    assert measured.spread([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.zeros(2)]) == 1.0, "the largest"


def test_the_typical_number_of_an_output() -> None:
    assert measured.typical(torch.arange(300.0)) == pytest.approx(149.5)
    assert measured.typical(torch.tensor([3, 9])) == 3
    assert measured.typical(torch.empty(0)) == 0
