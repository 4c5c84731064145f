"""Lanes: benches of one device that judge side by side, as those of a worker do."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.judging import Bench
from workers.device import find_device, lanes_of

Job = TypeVar("Job")
#: Host memory that a candidate may hold, bytes.
MEMORY_BYTES = {"cpu": 3 * 2**30, "cuda": 32 * 2**30}


def open_lanes(device: str, lanes: int, memory_bytes: int | None = None) -> list[Bench]:
    """Start as many zygotes as there are lanes, or as a worker would choose for 0, and wait until they are ready."""
    lanes = lanes_of(find_device(device), lanes)
    memory_bytes = memory_bytes or MEMORY_BYTES[device.partition(":")[0]]
    benches = [Bench(device, memory_bytes=memory_bytes, lanes=lanes) for _ in range(lanes)]
    for bench in benches:
        bench.evaluator.wait_ready()
    return benches


def spread(benches: Sequence[Bench], jobs: Iterable[Job], work: Callable[[Bench, Job], bool]) -> None:
    """Let each lane take one job after the other until there are none left, or `work` says that it is enough.

    Raises:
        Exception: what `work` raised first; the other lanes end their jobs.
    """
    left = deque(jobs)

    def take_all(bench: Bench) -> None:
        while left:
            try:
                job = left.popleft()
            except IndexError:  # another lane took the last one
                return
            if not work(bench, job):
                return

    with ThreadPoolExecutor(len(benches)) as pool:
        list(pool.map(take_all, benches))
