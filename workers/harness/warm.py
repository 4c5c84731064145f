"""Warm: the harness's own device code, loaded before there is a candidate.

A device loads a kernel of torch's when it is launched for the first time in a process, which takes up to 50 ms. Spare
processes have that behind them when their candidate comes.
"""

import torch

from workers.exchange.integrity import checksum, fingerprint
from workers.exchange.stopwatch import Stopwatch
from workers.harness.launch import move_all_written, move_written
from workers.harness.poison import poison

#: Dtypes that outputs mostly have.
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ELEMENTS = 1024
#: Memory that torch's allocator has ready for a candidate, bytes, and at most as a share of the device's: a few tensors
#: of a hundred megabytes, which take the driver some milliseconds each otherwise.
READY_BYTES, READY_SHARE = 2**30, 1 / 128


def warm_up(device: str, stopwatch: Stopwatch) -> None:
    """Do once what calls of a candidate are surrounded with, on small tensors; nothing comes of it."""
    if device != "cuda":
        return
    for dtype in _DTYPES:
        ours = torch.ones(_ELEMENTS, dtype=dtype, device=device)
        checksum(ours)
        move_all_written(fingerprint(torch.zeros_like(ours)), ours)
        move_written(torch.zeros_like(ours), ours)
        for _ in range(2):  # the second time there are places to look at
            stopwatch.time(lambda: ours)  # noqa: B023 - called at once
        stopwatch.burst([lambda: ours])  # noqa: B023
    poison(device, [_ELEMENTS], 0)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.empty(int(min(READY_BYTES, READY_SHARE * total)), dtype=torch.uint8, device=device)  # and let go of
    torch.cuda.synchronize()
