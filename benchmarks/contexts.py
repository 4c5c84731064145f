"""What a context of the device costs when several processes make and leave theirs at the same time.

`PYTHONPATH=. python benchmarks/contexts.py --devices cuda:0,cuda:1` has 1, 2, 4 and 8 processes a device make
a context by the driver, keep it for a moment, and end, again and again for a while, first on the first device alone
and then on all. Every evaluation makes and leaves two, so if they wait for each other in the driver, lanes and devices
of one host share that. It prints a table of medians in milliseconds and of contexts a second, and one JSON line.
"""

import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import click

from drkernel_q.cli.output import emit_table

#: Makes a context, waits to be told to end, and says how long the first took.
_PROCESS = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
start = time.perf_counter()
assert cuda.cuInit(0) == 0
initialized = time.perf_counter()
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(sys.argv[1])) == 0
print(initialized - start, time.perf_counter() - initialized, flush=True)
sys.stdin.readline()
"""


def contexts(devices: Sequence[int], processes: int, seconds: float) -> dict[str, float]:
    """Let so many processes a device come and go; return medians of the parts, ms, and contexts a second."""
    command = [sys.executable, "-c", _PROCESS]
    going = {start(command, device): device for device in devices for _ in range(processes)}
    parts: list[tuple[float, float, float]] = []
    ends_at = time.perf_counter() + seconds
    count = 0
    while going:
        process = next(iter(going))  # the oldest one
        device = going.pop(process)
        assert process.stdin is not None
        assert process.stdout is not None
        made = process.stdout.readline().split()
        told = time.perf_counter()
        process.stdin.close()
        process.wait()
        parts.append((float(made[0]), float(made[1]), time.perf_counter() - told))
        count += time.perf_counter() <= ends_at
        if time.perf_counter() < ends_at:
            going[start(command, device)] = device
    columns = zip(("init_ms", "context_ms", "end_ms"), zip(*parts, strict=True), strict=True)
    return {name: round(1e3 * statistics.median(column), 1) for name, column in columns} | {
        "a_second": round(count / seconds, 2)
    }


def start(command: Sequence[str], device: int) -> "subprocess.Popen[str]":
    """Start a process that makes a context on a device."""
    return subprocess.Popen([*command, str(device)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@click.command(help=__doc__)
@click.option("--devices", default="cuda:0", show_default=True, help="By comma.")
@click.option("--processes", default="1,2,4,8", show_default=True, help="Processes a device, by comma.")
@click.option("--seconds", default=4.0, show_default=True, help="Of each row.")
def main(devices: str, processes: str, seconds: float) -> None:
    """Measure on the first device, and on all."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise click.ClickException(f"There is no CUDA driver: {error}") from error
    indices = [int(device.partition(":")[2] or 0) for device in devices.split(",")]
    rows = [
        {"devices": len(chosen), "processes": each} | contexts(chosen, each, seconds)
        for chosen in ([indices[:1]] if len(indices) == 1 else [indices[:1], indices])
        for each in map(int, processes.split(","))
    ]
    emit_table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows])
    click.echo(json.dumps({"benchmark": "contexts", "rows": rows}))


if __name__ == "__main__":
    main()
