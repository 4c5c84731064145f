"""Poison: memory that is filled before a call, on the host."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.harness.poison import _GAPS, _SPARSE_BYTES, SMALL_BYTES, _ends, _filled, _lacking, poison


@given(st.lists(st.integers(0, 4 * SMALL_BYTES), max_size=6), st.lists(st.integers(1, 4 * SMALL_BYTES), max_size=9))
def test_memory_that_is_free_is_not_asked_for_again(sizes: list[int], free: list[int]) -> None:
    lacking = _lacking(sizes, free, "cuda")
    wanted = [size for size in sizes if size for _ in range(4 if size <= SMALL_BYTES else 2)]
    assert sum(lacking) >= sum(wanted) - sum(free)
    assert not _lacking(sizes, [*free, *lacking], "cuda"), "the second call needs no more than the first has left"


@given(st.integers(129, 2**17), st.sampled_from([0xFF, 0x4B]))
def test_a_block_is_poisoned_but_for_its_ends_and_some_of_it(size: int, pattern: int) -> None:
    block = _filled(size, pattern, "cpu")
    inner = block[64:-64]
    assert not block[:64].any()
    assert not block[-64:].any()
    assert set(inner.tolist()) <= {0, pattern}
    assert int((inner == 0).sum()) <= len(inner) // min(_GAPS) + 1
    assert int((inner == 0).sum()) >= len(inner) // max(_GAPS)


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=5), st.lists(st.integers(1, 4096), min_size=1, max_size=6))
def test_an_output_in_a_larger_block_begins_and_ends_with_zeros(sizes: list[int], blocks: list[int]) -> None:
    for size in sizes:
        fitting = [block for block in blocks if block >= size]
        if fitting:
            block = min(fitting)
            filled = _filled(block, 0xFF, "cpu", _ends(sizes, blocks)[block])
            assert not filled[:size][:64].any()
            assert not filled[:size][-64:].any()


@pytest.mark.slow
def test_large_blocks_have_fewer_zeros_and_small_ones_are_filled_too() -> None:
    large = _filled(4 * _SPARSE_BYTES, 0xFF, "cpu")
    assert int((large == 0).sum()) <= large.numel() // (4 * min(_GAPS)) + 129
    assert not _filled(1, 0xFF, "cpu").any()


def test_whoever_draws_after_it_draws_what_he_would_have() -> None:
    state = torch.get_rng_state()
    poison("cpu", [0, 64, 4096, 3 * SMALL_BYTES], 0x4B)
    assert torch.equal(torch.get_rng_state(), state), "a candidate draws what it would draw without"
