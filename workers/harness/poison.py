"""Poison: what lies in free memory before a call, so that nobody finds old results there."""

import bisect
import secrets
import sys
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

#: torch's allocator of CUDA memory has a pool for requests of up to this size and one for larger ones, and hands out
#: nothing of the one for the other; an allocator of a CPU keeps small blocks apart, bytes.
SMALL_BYTES = 2**20
#: What the allocator of CUDA memory rounds requests up to, bytes.
UNIT_BYTES = 512
#: Most pieces of one size.
MOST_SMALL = 64
#: Most free memory of one pool that is filled before a call, blocks and bytes.
MAX_BLOCKS, MAX_POOL_BYTES = 256, 2 * 2**30
#: Every so many bytes there is one that is zero; in blocks larger than this the zeros are farther apart, bytes.
_GAPS, _SPARSE_BYTES = range(41, 90), 2**24


class Pool(NamedTuple):
    """What an allocator keeps for requests of some sizes, all in bytes."""

    sizes: list[int]
    """Of the outputs that will be asked of it."""
    free: list[int]
    """Of blocks that are free, and no other is beside them."""
    unit: int = 1
    """What it rounds requests up to."""
    most: int = sys.maxsize
    """The largest request."""
    copies: int = MOST_SMALL
    """Places that an output of it may come to lie in."""


def poison(device: str, sizes: list[int], pattern: int) -> None:
    """Leave a pattern in memory that the allocator will hand out next, so that nobody finds old results there."""
    pools = _pools(device, sizes)
    if device == "cuda" and any(map(lacking, pools)):
        _hold(pools, device).clear()  # what of new segments lies beside each other is one block now
        pools = _pools(device, sizes)
    for block, ends in _hold(pools, device):
        _fill(block, pattern, ends)


def _hold(pools: list[Pool], device: str) -> list[tuple[Tensor, set[int]]]:
    asked = [request for pool in pools for request in requests(pool)]
    return [(torch.empty(size, dtype=torch.uint8, device=device), ends) for size, ends in asked]


def _pools(device: str, sizes: list[int]) -> list[Pool]:
    return cuda_pools(sizes, *_free_blocks()) if device == "cuda" else [Pool(sizes, [])]


def cuda_pools(sizes: list[int], small: list[int], large: list[int]) -> list[Pool]:
    """Return the two pools of CUDA memory, of which these blocks are free."""
    little = [size for size in sizes if size <= SMALL_BYTES]
    others = [size for size in sizes if size > SMALL_BYTES]
    return [
        Pool(little, _chosen(small, little), UNIT_BYTES, most=SMALL_BYTES, copies=4),
        Pool(others, _chosen(large, others), UNIT_BYTES),
    ]


def requests(pool: Pool) -> list[tuple[int, set[int]]]:
    """Say what to ask for, one after the other, to hold all that may be handed out next, and where outputs end in it.

    A block that is larger than any request is asked for in pieces.
    """
    ends = _ends(pool.sizes, pool.free)
    pieces: list[tuple[int, set[int]]] = []
    for size in pool.free:
        whole, rest = divmod(size, pool.most)
        found = ends.get(size, set())
        pieces += [(pool.most, found)] * whole + [(rest, set() if whole else found)] * (rest > 0)
    at_most = set[int]().union(*(found for size, found in pieces if size == pool.most))  # one of these begins a block
    pieces = [(size, at_most if size == pool.most else found) for size, found in pieces]
    pieces.sort(key=lambda piece: -piece[0])  # each finds a block of its own size then
    return pieces + [(size, {end for end in pool.sizes if end <= size}) for size in lacking(pool)]


def _ends(sizes: list[int], blocks: list[int]) -> dict[int, set[int]]:
    """Say where outputs end in blocks of each size: the allocator puts one at the start of the smallest that fits."""
    found: dict[int, set[int]] = {}
    by_size = sorted(set(blocks))
    for size in sizes:
        place = bisect.bisect_left(by_size, size)
        if place < len(by_size):
            found.setdefault(by_size[place], set()).add(size)
    return found


def _fill(block: Tensor, pattern: int, ends: Iterable[int] = ()) -> None:
    """Fill a block, not so uniformly that a look at a few bytes would tell, or at both ends of an output."""
    size = len(block)
    block.fill_(pattern)
    step = secrets.choice(_GAPS) * max(size // _SPARSE_BYTES, 1)
    block[secrets.randbelow(step) :: step] = 0
    block[:64] = block[-64:] = 0
    for end in ends:
        block[max(end - 64, 0) : end] = 0


def _copies(size: int, pool: Pool) -> int:
    """Say in how many places the next output of a size may come to lie."""
    return 2 if size > SMALL_BYTES else max(min(pool.copies, SMALL_BYTES // size), 4)


def lacking(pool: Pool) -> list[int]:
    """List what outputs may need beyond the free blocks of their pool, the smallest that fits taken for each.

    More would be free afterwards, and filled in the next call, and so on from call to call.
    """
    there, found = sorted(pool.free), list[int]()
    wanted = [-(-size // pool.unit) * pool.unit for size in pool.sizes if size for _ in range(_copies(size, pool))]
    for size in sorted(wanted, reverse=True):
        place = bisect.bisect_left(there, size)
        if place < len(there):
            bisect.insort(there, there.pop(place) - size)  # what is left of it is free still
        else:
            found.append(size)
    return found


def _free_blocks() -> tuple[list[int], list[int]]:
    """List the sizes of blocks that torch's allocator of CUDA memory holds free, of its small pool and of its large."""
    held = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    found: dict[str, list[int]] = {"small": [], "large": []}
    for segment in held:
        if segment["segment_pool_id"] == (0, 0):
            free = (block["size"] for block in segment["blocks"] if block["state"] == "inactive")
            found[segment["segment_type"]] += free
    return found["small"], found["large"]


def _chosen(free: list[int], sizes: list[int]) -> list[int]:
    """Choose the free blocks that are filled: first those that outputs fit in, the smallest of them first."""
    least = min(sizes, default=0)
    chosen, total = list[int](), 0
    for size in sorted(free, key=lambda size: (size < least, size if size >= least else -size)):
        if len(chosen) < MAX_BLOCKS and total + size <= MAX_POOL_BYTES:
            chosen.append(size)
            total += size
    return chosen
