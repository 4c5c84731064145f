"""Poison: what lies in free memory before a call, so that nobody finds old results there."""

import bisect
import itertools
import secrets
from collections.abc import Iterable

import torch
from torch import Tensor

#: Memory up to this size is poisoned in more pieces: the allocator keeps small blocks apart, bytes.
SMALL_BYTES = 2**20
#: Most pieces of one size.
MOST_SMALL = 64
#: Most free memory of torch's allocator that is filled before a call, blocks and bytes.
MAX_BLOCKS, MAX_POOL_BYTES = 256, 2 * 2**30
#: Every so many bytes there is one that is zero; in blocks larger than this the zeros are farther apart, bytes.
_GAPS, _SPARSE_BYTES = range(41, 90), 2**24


def poison(device: str, sizes: list[int], pattern: int) -> None:
    """Leave a pattern in memory that the allocator will hand out next, so that nobody finds old results there."""
    free = _free_blocks(device)
    places = [*free, *_lacking(sizes, free, device)]
    ends = _ends(sizes, places)
    blocks = [_filled(size, pattern, device, ends.get(size, ())) for size in places]
    blocks.clear()


def _ends(sizes: list[int], blocks: list[int]) -> dict[int, set[int]]:
    """Say where outputs end in blocks of each size: the allocator puts one at the start of the smallest that fits."""
    found: dict[int, set[int]] = {}
    by_size = sorted(set(blocks))
    for size in sizes:
        place = bisect.bisect_left(by_size, size)
        if place < len(by_size):
            found.setdefault(by_size[place], set()).add(size)
    return found


def _filled(size: int, pattern: int, device: str, ends: Iterable[int] = ()) -> Tensor:
    """Fill a new block, not so uniformly that a look at a few bytes would tell, or at both ends of an output."""
    block = torch.empty(size, dtype=torch.uint8, device=device).fill_(pattern)
    step = secrets.choice(_GAPS) * max(size // _SPARSE_BYTES, 1)
    block[secrets.randbelow(step) :: step] = 0
    block[:64] = block[-64:] = 0
    for end in ends:
        block[max(end - 64, 0) : end] = 0
    return block


def _blocks_of(size: int, device: str) -> int:
    """Say in how many blocks the next output of a size may come to lie; the allocator of a CPU has many small ones."""
    if size > SMALL_BYTES:
        return 2
    return 4 if device == "cuda" else max(min(MOST_SMALL, SMALL_BYTES // size), 4)


def _lacking(sizes: list[int], free: list[int], device: str) -> list[int]:
    """List what outputs of these sizes may need beyond the free blocks, the smallest that fits taken for each.

    More would be free afterwards, and filled in the next call, and so on from call to call.
    """
    there, lacking = sorted(free), list[int]()
    wanted = [size for size in sizes if size for _ in range(_blocks_of(size, device))]
    for size in sorted(wanted, reverse=True):
        place = bisect.bisect_left(there, size)
        if place < len(there):
            bisect.insort(there, there.pop(place) - size)  # what is left of it is free still
        else:
            lacking.append(size)
    return lacking


def _free_blocks(device: str) -> list[int]:
    """List the sizes of blocks that torch's allocator holds free, the largest first, of `MAX_POOL_BYTES` at most."""
    if device != "cuda":
        return []
    held = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    segments = [each for each in held if each["segment_pool_id"] == (0, 0)]
    blocks = [block["size"] for each in segments for block in each["blocks"] if block["state"] == "inactive"]
    sizes = sorted(blocks, reverse=True)[:MAX_BLOCKS]
    return [size for size, before in zip(sizes, itertools.accumulate(sizes), strict=True) if before <= MAX_POOL_BYTES]
