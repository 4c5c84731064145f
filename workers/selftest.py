"""Self-test: whether the stop-watch tells the truth on this device, about work whose duration is known.

The host's clock times a spin of the device that is long enough for it; then the stop-watch must find the same duration
wherever the work is launched from, and must notice work that nobody waits for.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import torch

from workers import canary
from workers.exchange.stopwatch import Stopwatch
from workers.isolation.wire import Channel

#: Length of the spin, clock cycles (about 5 ms), and of the wait on the CPU, seconds.
SPIN_CYCLES = 10_000_000
WAIT_S = 0.02
#: How far a duration may be off: on a GPU both ways; on a CPU that others use too a wait only ever takes longer.
TOLERANCE = {"cuda": (0.95, 1.05), "cpu": (0.98, 10.0)}
#: Share of the work that must be noticed when nobody waits for it.
NOTICED = 0.8
_REPEATS = 3


def find_faults(device: str) -> list[str]:
    """Return a sentence for everything that the stop-watch gets wrong; none when it can be trusted."""
    stopwatch = Stopwatch(device)
    if device == "cpu":
        return list(_compare(stopwatch, device, WAIT_S * 1e3, {"a wait": lambda: time.sleep(WAIT_S)}))
    known_ms = _host_ms()
    faults = list(_compare(stopwatch, device, known_ms, _ways_to_launch()))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stopwatch.time(lambda: _on(stream))
    if stopwatch.late_ms < NOTICED * known_ms:
        faults.append(
            f"work of {known_ms:.3g} ms that nobody waits for is not noticed ({stopwatch.late_ms:.3g} ms late)"
        )
    return faults


def _compare(stopwatch: Stopwatch, device: str, known_ms: float, calls: dict[str, Callable[[], None]]) -> Iterator[str]:
    low, high = TOLERANCE[device]
    for name, call in calls.items():
        found_ms = min(stopwatch.time(call)[0] for _ in range(_REPEATS))
        if not low * known_ms <= found_ms <= high * known_ms:
            yield f"{name} of {known_ms:.3g} ms is timed at {found_ms:.3g} ms"


def _spin() -> None:
    torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]


def _host_ms() -> float:
    """Time the spin by the host's clock."""
    durations = []
    for _ in range(_REPEATS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        _spin()
        torch.cuda.synchronize()
        durations.append((time.perf_counter() - start) * 1e3)
    return min(durations)


def _ways_to_launch() -> dict[str, Callable[[], None]]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _spin()

    def joined() -> None:
        _on(stream)
        torch.cuda.current_stream().wait_stream(stream)

    def in_thread() -> None:
        thread = threading.Thread(target=_spin)
        thread.start()
        thread.join()

    return {
        "work on the current stream": _spin,
        "work on a side stream": joined,
        "work in a CUDA graph": graph.replay,
        "work from another thread": in_thread,
    }


def _on(stream: torch.cuda.Stream) -> None:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _spin()


def main(conn: int, device: str) -> None:
    """Say what is wrong, in this fresh fork, and what the first canary finds."""
    found = canary.examine(device)
    faults = [] if found["complaint"] else find_faults(device)
    Channel(socket.socket(fileno=conn)).send(found | {"faults": faults})
