"""Poison: what lies in free memory before a call, so that nobody finds old results there."""

import itertools

import torch

#: Memory up to this size is poisoned in more pieces: the allocator keeps small blocks apart, bytes.
SMALL_BYTES = 2**20
#: Most free memory of torch's allocator that is filled before a call, blocks and bytes.
MAX_BLOCKS, MAX_POOL_BYTES = 256, 2 * 2**30


def poison(device: str, sizes: list[int], pattern: int) -> None:
    """Leave a pattern in memory that the allocator will hand out next, so that nobody finds old results there."""
    wanted = [size for size in sizes if size for _ in range(4 if size <= SMALL_BYTES else 2)] + _free_blocks(device)
    blocks = [torch.empty(size, dtype=torch.uint8, device=device).fill_(pattern) for size in wanted]
    for block in blocks:  # not so uniform that a look at a few bytes would tell
        block[torch.randint(block.numel(), (block.numel() // 64 + 1,), device=device)] = 0
        block[:64] = block[-64:] = 0
    blocks.clear()


def _free_blocks(device: str) -> list[int]:
    """List the sizes of blocks that torch's allocator holds free, the largest first, of `MAX_POOL_BYTES` at most."""
    if device != "cuda":
        return []
    held = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    segments = [each for each in held if each["segment_pool_id"] == (0, 0)]
    blocks = [block["size"] for each in segments for block in each["blocks"] if block["state"] == "inactive"]
    sizes = sorted(blocks, reverse=True)[:MAX_BLOCKS]
    return [size for size, before in zip(sizes, itertools.accumulate(sizes), strict=True) if before <= MAX_POOL_BYTES]
