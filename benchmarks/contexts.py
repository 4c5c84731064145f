"""What a context of the device costs when several processes make and leave theirs at the same time.

`PYTHONPATH=. python benchmarks/contexts.py --devices cuda:0,cuda:1` has 1, 2, 4 and 8 processes a device make
a context by the driver, keep it for a moment, and end, again and again for a while, first on the first device alone
and then on all. Every evaluation makes and leaves two, so if they wait for each other in the driver, lanes and devices
of one host share that. `--variant CUDA_DEVICE_MAX_CONNECTIONS=1` measures all of it once more with that in the
processes' environment. It prints a table of medians in milliseconds and of contexts a second, and one JSON line.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

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


def contexts(devices: Sequence[int], processes: int, seconds: float, variant: str) -> dict[str, float]:
    """Let so many processes a device come and go; return medians of the parts, ms, and contexts a second."""
    name, _, value = variant.partition("=")
    environment = os.environ | ({name: value} if name else {})
    going = {start(device, environment): device for device in devices for _ in range(processes)}
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
            going[start(device, environment)] = device
    columns = zip(("init_ms", "context_ms", "end_ms"), zip(*parts, strict=True), strict=True)
    return {name: round(1e3 * statistics.median(column), 1) for name, column in columns} | {
        "a_second": round(count / seconds, 2)
    }


def start(device: int, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a process that makes a context on a device."""
    command = [sys.executable, "-c", _PROCESS, str(device)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment))


@click.command(help=__doc__)
@click.option("--devices", default="cuda:0", show_default=True, help="By comma.")
@click.option("--processes", default="1,2,4,8", show_default=True, help="Processes a device, by comma.")
@click.option("--seconds", default=4.0, show_default=True, help="Of each row.")
@click.option("--variant", "variants", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
def main(devices: str, processes: str, seconds: float, variants: tuple[str, ...]) -> None:
    """Measure on the first device, and on all."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise click.ClickException(f"There is no CUDA driver: {error}") from error
    indices = [int(device.partition(":")[2] or 0) for device in devices.split(",")]
    rows = [
        {"variant": variant or "-", "devices": len(chosen), "processes": each}
        | contexts(chosen, each, seconds, variant)
        for variant in ("", *variants)
        for chosen in ([indices[:1]] if len(indices) == 1 else [indices[:1], indices])
        for each in map(int, processes.split(","))
    ]
    emit_table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows])
    click.echo(json.dumps({"benchmark": "contexts", "rows": rows}))


if __name__ == "__main__":
    main()
