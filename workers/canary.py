"""Canary: work whose result is known, done by a fresh process of trusted code, to see whether a device is well.

Every multiprocessor multiplies the same two matrices of small whole numbers over and over (Triton), and memory is
filled and summed up (torch). On a device that is well all of it is exact. How long the products take is for the asker
to compare.
"""

import socket
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.isolation.wire import Channel

#: Rows and columns of the matrices.
SIZE = 64
#: Products that are added up by each program; 64 each at most, so float32 holds their sum.
ROUNDS = {"cuda": 1024, "cpu": 2}
#: Programs for each multiprocessor.
PROGRAMS = {"cuda": 8, "cpu": 2}
#: Timed repetitions; the shortest counts, since spare candidates may be getting ready on the device.
REPEATS = 10
#: Whole numbers that are written to memory and summed up.
NUMBERS = {"cuda": 2**24, "cpu": 2**16}


def _multiply(
    left: tl.tensor,
    right: tl.tensor,
    products: tl.tensor,
    SIZE: tl.constexpr,  # noqa: N803 - Triton's custom for constants
    ROUNDS: tl.constexpr,  # noqa: N803
) -> None:
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    first, second = tl.load(left + place), tl.load(right + place)
    total = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for _ in range(ROUNDS):
        total = tl.dot(first, second, total)
    tl.store(products + tl.program_id(0) * SIZE * SIZE + place, total)


# Not as a decorator: triton comes without types, and would take this function's away.
_kernel = triton.jit(_multiply)


def examine(device: str) -> dict[str, Any]:
    """Try `device` (`cpu` or `cuda`).

    Returns `complaint` (a sentence, None if it is well) and `milliseconds` (of the products; None on the cpu, whose
    time others share).
    """
    milliseconds = None
    try:
        complaint = next(_complaints(device), None)
        if device == "cuda" and complaint is None:
            milliseconds = _milliseconds()
    except Exception as error:  # noqa: BLE001 - whatever a sick device raises is what is wrong with it
        complaint = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return {"complaint": complaint, "milliseconds": milliseconds}


def _complaints(device: str) -> Iterator[str]:
    count = NUMBERS[device]
    numbers = torch.arange(count, dtype=torch.int32, device=device)
    total = int((numbers * 3 + 1).sum(dtype=torch.int64))
    if total != 3 * count * (count - 1) // 2 + count:
        yield f"{count} numbers add up to {total}"
    left, right = _matrices()
    expected = (left.double() @ right.double() * ROUNDS[device]).to(torch.float32)
    products = _products(left, right, device).cpu()
    wrong = int((products != expected).sum())
    if wrong:
        yield f"{wrong} of {products.numel()} products are wrong"


def _matrices() -> tuple[Tensor, Tensor]:
    """Make two matrices of -1, 0 and 1, always the same."""
    places = torch.arange(SIZE * SIZE, dtype=torch.int64).reshape(SIZE, SIZE)
    return (places * 7 % 3 - 1).half(), (places * places % 5 % 3 - 1).half()


def _products(left: Tensor, right: Tensor, device: str) -> Tensor:
    processors = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 1
    products = torch.empty(PROGRAMS[device] * processors, SIZE, SIZE, device=device)
    _kernel[(len(products),)](left.to(device), right.to(device), products, SIZE=SIZE, ROUNDS=ROUNDS[device])
    return products


def _milliseconds() -> float:
    left, right = (matrix.cuda() for matrix in _matrices())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    durations: list[float] = []
    for _ in range(REPEATS):
        start.record()
        _products(left, right, "cuda")
        end.record()
        end.synchronize()
        durations.append(start.elapsed_time(end))
    return min(durations)


def main(conn: int, device: str) -> None:
    """Say what is wrong, in this fresh fork."""
    Channel(socket.socket(fileno=conn)).send(examine(device))
