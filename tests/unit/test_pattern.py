"""Where an output is wrong and what the wrong values look like, in words."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers.comparison import measure, pattern
from workers.comparison.correctness import compare
from workers.comparison.measure import Expected
from workers.comparison.pattern import find_pattern, region_of


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def mask(shape: tuple[int, ...], *places: tuple[slice | int | list[int], ...]) -> Tensor:
    wrong = torch.zeros(shape, dtype=torch.bool)
    for place in places:
        wrong[place] = True
    return wrong


ALL = slice(None)
REGIONS: dict[str, Tensor] = {
    "every element": mask((8, 9), (ALL,)),
    "row 3": mask((8, 9), (3,)),
    "the last row": mask((8, 9), (7,)),
    "rows 2..4": mask((8, 9), (slice(2, 5),)),
    "the first 3 rows": mask((8, 9), (slice(0, 3),)),
    "the last 2 rows": mask((8, 9), (slice(6, 8),)),
    "the last 4 columns": mask((8, 9), (ALL, slice(5, 9))),
    "row 0, column 0": mask((8, 9), (0, 0)),
    "rows 2..4, columns 3..6": mask((8, 9), (slice(2, 5), slice(3, 7))),
    "columns 1, 3, 5, ... 7": mask((8, 9), (ALL, slice(1, 9, 2))),
    "3 of 8 rows": mask((8, 9), ([0, 1, 5],)),
    "all over the output (97% of the elements there)": ~mask((8, 9), (0, 0), (1, 0)),
    "all over the output (50% of the elements there)": torch.arange(72).view(8, 9) % 2 == 0,
    "the last 8 elements": mask((64,), (slice(56, 64),)),
    "index of dimension 0 1": mask((3, 4, 5), (1,)),
    "indices of dimension 1 2..4, the last column": mask((3, 6, 4, 5), (ALL, slice(2, 5), ALL, 4)),
}


@pytest.mark.parametrize(("words", "wrong"), REGIONS.items(), ids=REGIONS)
def test_places_are_put_into_words(words: str, wrong: Tensor) -> None:
    assert region_of(wrong, int(wrong.sum())) == words


def test_few_elements_all_over_are_few() -> None:
    rows = torch.zeros(1000, 1000, dtype=torch.bool)
    rows[torch.arange(0, 600), torch.randperm(1000)[:600]] = True
    assert region_of(rows, 600) == "the first 600 rows (less than 1% of the elements there)"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=42))
def test_every_mask_has_words(places: list[tuple[int, int]]) -> None:
    wrong = torch.zeros(6, 7, dtype=torch.bool)
    for place in places:
        wrong[place] = True
    words = region_of(wrong, int(wrong.sum()))
    assert words
    assert len(words) < 120


LOOKS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "NaN": lambda y: y * torch.nan,
    "infinite": lambda y: torch.full_like(y, torch.inf),
    "partly NaN or infinite": lambda y: torch.where(y > 0, torch.nan, y + 1),
    "all equal to 7.5": lambda y: torch.full_like(y, 7.5),
    "with the sign inverted": torch.neg,
    "2 times what they should be": lambda y: 2 * y,
    "0.125 times what they should be": lambda y: y / 8,
    "3 more than they should be": lambda y: y + 3,
    "0.25 less than they should be": lambda y: y - 0.25,
    "transposed": lambda y: y.mT.contiguous(),
}


@pytest.mark.parametrize(("words", "fault"), LOOKS.items(), ids=LOOKS)
def test_what_wrong_values_have_in_common_is_said(words: str, fault: Callable[[Tensor], Tensor]) -> None:
    exact = torch.randn(24, 24, dtype=torch.float64)
    found = find_pattern(2, exact, fault(exact).float(), 1e-4)
    assert found is not None
    assert (found.looks, found.output, found.shape, found.elements) == (words, 2, (24, 24), 576)
    if words != "transposed":
        part = exact.clone()
        part[5] = fault(exact)[5]
        here = find_pattern(0, exact, part, 1e-4)
        assert here is not None
        assert (here.looks, here.region.partition(" (")[0]) == (words, "row 5")


def test_what_has_nothing_in_common_is_not_named() -> None:
    exact = torch.randn(24, 24, dtype=torch.float64)
    found = find_pattern(0, exact, torch.randn(24, 24), 1e-4)
    assert found is not None
    assert found.looks is None
    assert find_pattern(0, exact, exact.float(), 1e-4) is None


def test_integers_and_booleans_have_patterns_too() -> None:
    index = torch.arange(64).view(8, 8)
    found = find_pattern(0, index, index.masked_fill(index < 8, 0), 0.0)
    assert found is not None
    assert (found.wrong, found.region, found.looks) == (7, "row 0, the last 7 columns", "zeros")
    found = find_pattern(0, index > 3, torch.ones(8, 8, dtype=torch.bool), 0.0)
    assert found is not None
    assert (found.wrong, found.looks) == (4, "all equal to 1")


def test_chunks_and_samples_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.randn(100, 30, dtype=torch.float64)
    output = exact.clone()
    output[:, 20:] *= -1
    whole = find_pattern(0, exact, output, 1e-4)
    monkeypatch.setattr(measure, "CHUNK", 70)
    monkeypatch.setattr(pattern, "SAMPLE", 50)
    assert find_pattern(0, exact, output, 1e-4) == whole
    assert whole is not None
    assert (whole.wrong, whole.region, whole.looks) == (1000, "the last 10 columns", "with the sign inverted")


def test_a_comparison_brings_the_pattern_of_its_first_wrong_output() -> None:
    y = torch.randn(16, 8)
    expected = Expected({}, [y, y, y], [y.double()] * 3, 8)
    bad = y.clone()
    bad[:, 6:] = 0
    found = compare(expected, [y.clone(), bad, -y]).pattern
    assert found is not None
    assert (found.output, found.wrong, found.region, found.looks) == (1, 32, "the last 2 columns", "zeros")
    assert compare(expected, [y.clone()] * 3).pattern is None
    many_small = compare(Expected({}, [y], [y.double()], 8), [y + 4e-5])
    assert many_small.pattern is not None
    complex_numbers = torch.randn(4, 4, dtype=torch.complex64)
    both = compare(
        Expected({}, [complex_numbers], [complex_numbers.to(torch.complex128)], 4),
        [complex_numbers.conj().resolve_conj()],
    )
    assert both.pattern is not None
    assert (both.pattern.region, both.pattern.looks) == ("the last column", "with the sign inverted")
