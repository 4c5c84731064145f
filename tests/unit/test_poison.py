"""Poison: memory that is filled before a call, on the host."""

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from workers.harness.poison import (
    _GAPS,
    _SPARSE_BYTES,
    SMALL_BYTES,
    Pool,
    _ends,
    _fill,
    cuda_pools,
    lacking,
    poison,
    requests,
)

MIB = 2**20


class Place(NamedTuple):
    """Where an allocation lies: its segment, and the bytes in it."""

    segment: int
    start: int
    size: int


class Allocator:
    """What torch's allocator of CUDA memory does: two pools, best fit, blocks that are split and merged again."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, int]] = []
        self.free: list[Place] = []

    def pools(self, sizes: list[int]) -> list[Pool]:
        free = {True: list[int](), False: list[int]()}
        for place in self.free:
            free[self.segments[place.segment][0]].append(place.size)
        return cuda_pools(sizes, free[True], free[False])

    def take(self, size: int) -> Place:
        size = max(-(-size // 512), 1) * 512
        small = size <= MIB
        fitting = [place for place in self.free if self.segments[place.segment][0] is small and place.size >= size]
        if not fitting:
            whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((small, whole))
            fitting = [Place(len(self.segments) - 1, 0, whole)]
            self.free += fitting
        found = min(fitting, key=lambda place: (place.size, place.segment, place.start))
        self.free.remove(found)
        left = found.size - size
        if left < 512 if small else left <= MIB:
            return found
        self.free.append(Place(found.segment, found.start + size, left))
        return found._replace(size=size)

    def give(self, given: Place) -> None:
        for place in list(self.free):
            if place.segment == given.segment and place.start in {given.start + given.size, given.start - place.size}:
                self.free.remove(place)
                given = Place(given.segment, min(place.start, given.start), given.size + place.size)
        self.free.append(given)


_bytes = st.one_of(st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(MIB + 1, 40 * MIB))


@given(
    st.lists(st.tuples(_bytes, st.booleans()), max_size=12),
    st.lists(_bytes, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@example([(2**30, False)], [MIB // 4], None)  # what is free of the other pool is none of this one's
@example([(1000, True)], [MIB // 4], None)  # no request is as large as the rest of a segment of the small pool
def test_outputs_come_to_lie_in_poison_and_end_in_zeros(
    made: list[tuple[int, bool]], sizes: list[int], order: random.Random | None
) -> None:
    allocator = Allocator()
    for place in [place for place, kept in [(allocator.take(size), kept) for size, kept in made] if not kept]:
        allocator.give(place)
    for number in range(2):  # two calls
        before = len(allocator.segments)
        for _ in range(1 + any(map(lacking, allocator.pools(sizes)))):
            asked = [request for pool in allocator.pools(sizes) for request in requests(pool)]
            poisoned = [(allocator.take(size), ends) for size, ends in asked]
            for place, _ in poisoned:
                allocator.give(place)
        held = len(allocator.segments)
        assert not number or held == before, "the second call takes no more than the first has left"
        outputs = [(size, allocator.take(size)) for size in (order.sample(sizes, len(sizes)) if order else sizes)]
        assert len(allocator.segments) == held, "none of it is memory that nobody had"
        for size, output in outputs:
            filled = [each for each in poisoned if each[0].segment == output.segment]
            left = sum(
                max(min(output.start + size, each.start + each.size) - max(output.start, each.start), 0)
                for each, _ in filled
            )
            assert left == size, "all of it is filled"
        size, first = outputs[0]
        ends = next(ends for place, ends in poisoned if place[:2] == first[:2])
        assert size in ends
        for _, output in outputs:
            allocator.give(output)


@given(st.lists(st.integers(0, 4 * SMALL_BYTES), max_size=6), st.lists(st.integers(1, 4 * SMALL_BYTES), max_size=9))
def test_memory_that_is_free_is_not_asked_for_again(sizes: list[int], free: list[int]) -> None:
    pool = Pool(sizes, free, copies=4)
    found = lacking(pool)
    wanted = [size for size in sizes if size for _ in range(4 if size <= SMALL_BYTES else 2)]
    assert sum(found) >= sum(wanted) - sum(free)
    assert not lacking(pool._replace(free=[*free, *found])), "the second call needs no more than the first has left"


def _filled(size: int, pattern: int, ends: Iterable[int] = ()) -> Tensor:
    block = torch.empty(size, dtype=torch.uint8)
    _fill(block, pattern, ends)
    return block


@given(st.integers(129, 2**17), st.sampled_from([0xFF, 0x4B]))
def test_a_block_is_poisoned_but_for_its_ends_and_some_of_it(size: int, pattern: int) -> None:
    block = _filled(size, pattern)
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
            filled = _filled(block, 0xFF, _ends(sizes, blocks)[block])
            assert not filled[:size][:64].any()
            assert not filled[:size][-64:].any()


@pytest.mark.slow
def test_large_blocks_have_fewer_zeros_and_small_ones_are_filled_too() -> None:
    large = _filled(4 * _SPARSE_BYTES, 0xFF)
    assert int((large == 0).sum()) <= large.numel() // (4 * min(_GAPS)) + 129
    assert not _filled(1, 0xFF).any()


def test_whoever_draws_after_it_draws_what_he_would_have() -> None:
    state = torch.get_rng_state()
    poison("cpu", [0, 64, 4096, 3 * SMALL_BYTES], 0x4B)
    assert torch.equal(torch.get_rng_state(), state), "a candidate draws what it would draw without"
