"""Probes: inputs that differ from drawn ones as they should, and stay what a problem may expect."""

from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch
from torch import Tensor

from workers.exchange import integrity
from workers.exchange.integrity import same_bits
from workers.judging import probe
from workers.judging.session import pack_inputs

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "matrix": lambda: torch.randn(6, 9),
    "transposed": lambda: torch.randn(9, 6).t(),
    "vector": lambda: torch.randn(9),
    "column": lambda: torch.randn(9, 1),
    "images": lambda: torch.randn(2, 3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "half": lambda: torch.randn(6, 9).half(),
    "bfloat16": lambda: torch.randn(6, 9).bfloat16(),
}
CHANGES = [probe.one_element, probe.one_row, probe.structured]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def change(tensor: Tensor, how: probe.Change) -> Tensor:
    moved = probe.changed([tensor], how, Random())
    (result,) = moved or [tensor]
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("how", CHANGES)
def test_something_changes_and_the_layout_and_the_original_do_not(
    how: probe.Change, make: Callable[[], Tensor]
) -> None:
    tensor = make()
    kept = tensor.clone()
    moved = change(tensor, how)
    assert same_bits(tensor, kept)
    assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert not same_bits(moved, tensor)
    if how is probe.one_element:
        assert float(tensor.min()) <= float(moved.min()) <= float(moved.max()) <= float(tensor.max())
    else:
        assert set(moved.flatten().tolist()) <= set(tensor.flatten().tolist()), "no value that was not drawn"


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_one_element_is_one_and_goes_far(make: Callable[[], Tensor]) -> None:
    tensor = make()
    moved = change(tensor, probe.one_element)
    different = moved != tensor
    assert int(different.sum()) == 1
    assert (moved - tensor)[different].abs() >= (tensor.max() - tensor.min()) / 2.1


def test_one_row_is_one_row() -> None:
    tensor = torch.randn(6, 9)
    different = (change(tensor, probe.one_row) != tensor).any(dim=1)
    assert int(different.sum()) == 1


def test_another_structure_keeps_zeros_and_symmetry() -> None:
    for tensor in (torch.randn(5, 5).tril(), torch.eye(4), torch.ones(3, 3), (m := torch.randn(4, 4)) + m.T):
        assert same_bits(change(tensor, probe.structured), tensor)


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_half_of_the_rows_is_amplified(make: Callable[[], Tensor]) -> None:
    tensor = make()
    moved = change(tensor, probe.amplified)
    if tensor.min() >= -1.5 or tensor.max() <= 1.5:
        assert same_bits(moved, tensor)
        return
    factors = (moved / tensor).flatten()
    assert set(factors.tolist()) <= {1.0, 16.0}
    assert 0.25 <= float((factors == 16).double().mean()) <= 0.75


def test_no_half_of_the_rows_has_the_mean_of_all() -> None:
    apart = []
    for _ in range(30):
        sizes = change(torch.randn(4096), probe.amplified).abs()
        apart.append(abs(float(sizes[:2048].mean() / sizes.mean()) - 1))
    assert sum(each > 0.05 for each in apart) >= 20


@pytest.mark.parametrize("rows", [4, 5, 8, 100])
def test_the_first_and_the_last_row_are_not_amplified(rows: int) -> None:
    for _ in range(20):
        tensor = torch.randn(rows, 50)
        moved = change(tensor, probe.amplified)
        assert torch.equal(moved[0], tensor[0])
        assert torch.equal(moved[-1], tensor[-1])
        assert not torch.equal(moved, tensor)


def test_values_that_look_bounded_are_not_amplified() -> None:
    for tensor in (torch.rand(100), torch.randn(100).abs(), -torch.rand(100) * 9, torch.randn(100).clamp(-1, 1)):
        assert same_bits(change(tensor, probe.amplified), tensor)


def test_the_share_that_changed_counts_what_had_to_be_made() -> None:
    x, y = torch.randn(10), torch.randn(10)
    half = torch.where(torch.arange(10) < 5, x, y)
    assert probe.share_changed([x], [x.clone()], []) == 0.0
    assert probe.share_changed([x], [half], []) == 0.5
    assert probe.share_changed([x, y], [half, y.clone()], []) == 0.25
    assert probe.share_changed([x, y], [half, y.clone()], [y]) == 0.5, "an input that is passed on counts for nothing"
    few = torch.zeros(100).index_fill(0, torch.tensor(7), 2.0)
    assert probe.share_changed([few], [1.02 * few], []) == 1.0, "zeros around what is scattered are nobody's"
    assert probe.share_changed([few], [few.clone()], []) == 0.0
    assert probe.share_changed([torch.zeros(3)], [torch.zeros(3)], []) == 0.0
    assert probe.share_changed([torch.arange(3)], [torch.arange(3)], []) is None


def test_only_one_floating_point_input_is_changed() -> None:
    inputs = [torch.randn(4), torch.arange(4), {"a": [torch.randn(4)]}, 2.5, torch.tensor(1.0)]
    for _ in range(10):
        moved = probe.changed(inputs, probe.one_row, Random())
        assert moved is not None
        assert same_bits(moved[1], torch.arange(4))
        assert moved[3:] == [2.5, torch.tensor(1.0)]
        assert same_bits(moved[0], inputs[0]) != same_bits(moved[2]["a"][0], inputs[2]["a"][0])  # type: ignore[arg-type,index]


@pytest.mark.parametrize("inputs", [[torch.arange(9)], [torch.tensor(1.0)], [torch.randn(4).to(torch.float8_e5m2)]])
def test_what_cannot_be_changed_is_left(inputs: list[Tensor]) -> None:
    assert probe.changed(inputs, probe.one_element, Random()) is None


def test_what_inputs_may_be_is_kept() -> None:
    lower, symmetric, labels = torch.randn(8, 8).tril(), torch.randn(8, 8), torch.randint(0, 2, (100,)) * 2.0 - 1
    symmetric = symmetric + symmetric.mT
    for how in (probe.one_element, probe.one_row):
        assert torch.equal(change(lower, how) == 0, lower == 0)
        moved = change(symmetric, how)
        assert torch.equal(moved, moved.mT)
        assert set(change(labels, how).tolist()) == {-1.0, 1.0}
        edges = change(torch.arange(16.0), how)
        assert bool((edges.diff() >= 0).all())
    assert not same_bits(change(symmetric, probe.one_element), symmetric)
    assert probe.changed([symmetric], probe.one_row, Random()) is None, "what changes nothing is no probe"
    assert probe.changed([torch.rand(64, 64)], probe.amplified, Random()) is None
    drawn = torch.randn(4, 64)
    different = change(drawn, probe.one_element).unique()  # type: ignore[no-untyped-call]
    assert len(different) == drawn.numel(), "a new tie has no order"


def test_inputs_that_are_always_the_same_get_others_within_their_bounds() -> None:
    mask = torch.ones(4, 8).tril()
    truths = [torch.ones(64, dtype=torch.bool), mask.bool()]
    inputs = [torch.randn(4, 8), torch.zeros(8), [mask, *truths], torch.arange(4), 2.0]
    sums = [integrity.fingerprint(tensor) for tensor in pack_inputs([torch.randn(4, 8), *inputs[1:]])[1]]
    moved = probe.with_constants_moved(inputs, sums)
    assert moved is not None
    drawn, zeros, (lower, truth, causal), order, number = moved
    assert drawn is inputs[0]
    assert zeros.any()
    assert bool(((zeros >= 0) & (zeros < 0.1)).all())
    assert torch.equal(lower == 0, mask == 0), "zeros stay zeros beside anything else"
    assert bool(((lower <= mask) & (lower >= 0.9 * mask)).all())
    assert not torch.equal(lower, mask)
    assert 0 < int((~truth).sum()) < 32
    assert causal is truths[1]
    assert order is inputs[3]
    assert number == 2.0
    assert probe.with_constants_moved(inputs[:1], sums[:1]) is None
    assert (
        probe.with_constants_moved([causal, order], [integrity.fingerprint(each) for each in (causal, order)]) is None
    )
