"""What a context of the device costs when several processes make and leave theirs at the same time.

`PYTHONPATH=. python benchmarks/contexts.py --devices cuda:0,cuda:1` has 1, 2, 4 and 8 processes a device make
a context by the driver, keep it for a moment, and end, again and again for a while, first on the first device alone
and then on all. Every evaluation makes and leaves two, so if they wait for each other in the driver, lanes and devices
of one host share that. `--variant CUDA_DEVICE_MAX_CONNECTIONS=1` measures all of it once more with that in the
processes' environment, `NAME=VALUE,NAME=VALUE` with both, `worker` with what drkq gives them; `--confined` has them
confined as candidates are, to whom other GPUs are hidden. It prints a table of medians in milliseconds and of contexts
a second, and one JSON line.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click

from drkernel_q.cli.output import emit_table
from drkernel_q.errors import DrkqError
from workers.device import Device, find_device

#: Makes a context, waits to be told to end, and says how long the first took.
_PROCESS = """
import ctypes, sys, time
if sys.argv[1]:
    from workers.isolation.sandbox import Confinement, confine
    confine(Confinement(sys.argv[1], None, None))
cuda = ctypes.CDLL("libcuda.so.1")
start = time.perf_counter()
assert cuda.cuInit(0) == 0
initialized = time.perf_counter()
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print(initialized - start, time.perf_counter() - initialized, flush=True)
sys.stdin.readline()
"""


class Order(NamedTuple):
    """How processes are started."""

    variant: str
    """Their environment, as the command line names it."""
    folder: str
    """The only one that they may write to, if they are confined."""

    def start(self, device: Device) -> "subprocess.Popen[str]":
        """Start a process that makes a context on a device."""
        command = [sys.executable, "-c", _PROCESS, self.folder]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": device.identity} | variables(self.variant, device)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def variables(variant: str, device: Device) -> dict[str, str]:
    """Return what a variant adds to the environment."""
    if variant == "worker":
        return device.environment
    return dict(pair.split("=", 1) for pair in variant.split(",") if pair)


def contexts(devices: Sequence[Device], processes: int, seconds: float, order: Order) -> dict[str, float]:
    """Let so many processes a device come and go; return medians of the parts, ms, and contexts a second."""
    going = {order.start(device): device for device in devices for _ in range(processes)}
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
            going[order.start(device)] = device
    columns = zip(("init_ms", "context_ms", "end_ms"), zip(*parts, strict=True), strict=True)
    return {name: round(1e3 * statistics.median(column), 1) for name, column in columns} | {
        "a_second": round(count / seconds, 2)
    }


@click.command(help=__doc__)
@click.option("--devices", default="cuda:0", show_default=True, help="By comma.")
@click.option("--processes", default="1,2,4,8", show_default=True, help="Processes a device, by comma.")
@click.option("--seconds", default=4.0, show_default=True, help="Of each row.")
@click.option("--variant", "variants", multiple=True, metavar="NAME=VALUE", help="May be repeated; or `worker`.")
@click.option("--confined", is_flag=True, help="As candidates are.")
def main(devices: str, processes: str, seconds: float, variants: tuple[str, ...], confined: bool) -> None:
    """Measure on the first device, and on all."""
    try:
        chosen = [find_device(name) for name in devices.split(",")]
    except DrkqError as error:
        raise click.ClickException(str(error)) from error
    with TemporaryDirectory() as folder:
        rows = [
            {"variant": variant or "-", "devices": len(some), "processes": each}
            | contexts(some, each, seconds, Order(variant, folder if confined else ""))
            for variant in ("", *variants)
            for some in ([chosen] if len(chosen) == 1 else [chosen[:1], chosen])
            for each in map(int, processes.split(","))
        ]
    emit_table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows])
    click.echo(json.dumps({"benchmark": "contexts", "rows": rows}))


if __name__ == "__main__":
    main()
