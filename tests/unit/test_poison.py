"""Poison: memory that is filled before a call, on the host."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.poison import SMALL_BYTES, _lacking, poison


@given(st.lists(st.integers(0, 4 * SMALL_BYTES), max_size=6), st.lists(st.integers(1, 4 * SMALL_BYTES), max_size=9))
def test_memory_that_is_free_is_not_asked_for_again(sizes: list[int], free: list[int]) -> None:
    lacking = _lacking(sizes, free)
    wanted = [size for size in sizes if size for _ in range(4 if size <= SMALL_BYTES else 2)]
    assert sum(lacking) >= sum(wanted) - sum(free)
    assert not _lacking(sizes, [*free, *lacking]), "the second call needs no more than the first has left"


def test_a_block_is_poisoned_but_for_its_ends_and_some_of_it() -> None:
    poison("cpu", [0, 64, 4096, 3 * SMALL_BYTES], 0xFF)  # whatever the size
    state = torch.get_rng_state()
    poison("cpu", [4096], 0x4B)
    assert torch.equal(torch.get_rng_state(), state), "a candidate draws what it would draw without"
