"""Artefacts: small, bounded, and the same when they are read back."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.artefact import MAX_BYTES, MAX_ROWS, Artefacts, Burst, ProfileRow, pack, unpack

#: What an event of a device tells: a 32-bit float of milliseconds.
TIMES = st.floats(2**-16, 2**16, width=32)
BLOCKS = st.lists(st.lists(TIMES, min_size=1, max_size=4).map(tuple), max_size=4).map(tuple)


@given(st.dictionaries(st.sampled_from(["eager", "candidate"]), BLOCKS), st.lists(st.integers(0, 2**63 - 1)))
def test_what_is_packed_is_read_back(blocks: dict[str, tuple[tuple[float, ...], ...]], seeds: list[int]) -> None:
    artefacts = Artefacts(
        blocks=blocks,
        seeds={"timed": tuple(seeds)},
        bursts=(Burst(side="empty", calls=3, seconds=0.125),),
        profile=(ProfileRow(name="kernel \u00fc", operator=None, device_us=1.5, times=2),),
    )
    found = unpack(pack(artefacts))
    assert {name: as_floats(side) for name, side in found.blocks.items()} == {
        name: as_floats(side) for name, side in blocks.items()
    }
    assert found.model_copy(update={"blocks": {}}) == artefacts.model_copy(update={"blocks": {}})


def as_floats(blocks: tuple[tuple[float, ...], ...]) -> list[bytes]:
    """The times as the 32-bit floats that they were."""
    return [struct.pack(f"{len(block)}f", *block) for block in blocks]


def usual(generator: random.Random, rows: int = 20) -> Artefacts:
    """What an evaluation on a GPU leaves: 6 blocks of 18 calls a side."""

    def times() -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(generator.gauss(0.07, 0.001) for _ in range(18)) for _ in range(6))

    return Artefacts(
        blocks={"eager": times(), "candidate": times()},
        late_ms={"candidate": tuple(generator.random() for _ in range(300))},
        seeds={"timed": tuple(generator.getrandbits(63) for _ in range(300))},
        bursts=tuple(Burst(side="empty", calls=6, seconds=generator.random()) for _ in range(36)),
        profile=tuple(
            ProfileRow(name=generator.randbytes(100).hex(), operator=None, device_us=float(number), times=1)
            for number in range(rows)
        ),
    )


def test_an_evaluation_s_are_small() -> None:
    assert len(pack(usual(random.Random(0)))) < 12_000


def test_rows_that_a_candidate_makes_without_end_are_left_out() -> None:
    many = usual(random.Random(0), rows=5000)
    kept = unpack(pack(many))
    assert len(kept.profile) == MAX_ROWS
    assert kept.profile[0].device_us == 4999, "the largest are kept"
    assert kept.dropped == {"profile": 5000 - MAX_ROWS}
    assert len(pack(many)) <= MAX_BYTES


def test_what_can_be_spared_goes_first_and_times_of_blocks_never() -> None:
    generator = random.Random(0)
    names = {"timed": tuple(generator.randbytes(2000).hex() for _ in range(30))}
    seeds = {"timed": tuple(generator.getrandbits(63) for _ in range(10_000))}
    large = usual(generator).model_copy(update={"kernel_names": names, "seeds": seeds})
    packed = pack(large)
    kept = unpack(packed)
    assert len(packed) <= MAX_BYTES
    assert kept.dropped == {"profile": 20, "kernel_names": 30, "seeds": 10_000}
    assert (kept.profile, kept.kernel_names, kept.seeds) == ((), {}, {})
    assert [len(blocks) for blocks in kept.blocks.values()] == [6, 6]


@pytest.mark.parametrize("blob", [b"", b"nonsense", pack(Artefacts())[:-3]])
def test_what_was_never_packed(blob: bytes) -> None:
    with pytest.raises(ValueError, match="no packed artefacts"):
        unpack(blob)
