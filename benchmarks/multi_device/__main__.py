"""Several devices of one host: how evaluations scale, whether devices disturb each other, faults, and training.

`python -m benchmarks.multi_device --seconds 240` measures on all devices of this host what is promised of
one worker a device; `--devices cpu:1,cpu:2` rehearses it on a machine without a GPU, where bounds say nothing. One JSON
line a finding goes to standard output as soon as it is known, so a run that is killed leaves what it has found. Stacks
are the embedded one of `drkq up`, in folders of their own. A part that cannot run says why, and the next one begins.
The exit code is 0 if every bound holds, 1 if one does not, and else 3 if something was not measured.
"""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from benchmarks.multi_device.faults import faults
from benchmarks.multi_device.found import Line, exit_code
from benchmarks.multi_device.interference import interference
from benchmarks.multi_device.scaling import scaling
from benchmarks.multi_device.site import Order
from benchmarks.multi_device.training import training
from drkernel_q.cli.output import emit_jsonl, say
from drkernel_q.local.process import resolve_devices

PARTS: dict[str, Callable[[Order, Path], Awaitable[None]]] = {
    "scaling": scaling,
    "interference": interference,
    "faults": faults,
    "training": training,
}
#: A part that takes this much longer than it was given, seconds, is broken off.
GRACE_S = 300.0


@click.command(help=__doc__)
@click.option("--devices", default="auto", show_default=True, help="By comma: cuda:0,cuda:1; `auto` is all there are.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this; may be repeated.")
@click.option(
    "--seconds", default=300.0, show_default=True, help="Time of a part, beside its start; it begins nothing after it."
)
@click.option("--count", default=200, show_default=True, help="Kernels that each number of devices judges.")
@click.option("--repeats", default=12, show_default=True, help="Evaluations of a kernel beside each neighbour.")
@click.option("--budget", default=1.0, show_default=True, help="Seconds that a timing stage aims to stay within.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="File that the lines are added to as well.")
def main(
    devices: str, parts: tuple[str, ...], seconds: float, count: int, repeats: int, budget: float, report: Path | None
) -> None:
    """Run the parts one after the other."""
    chosen = resolve_devices(devices.split(","))
    if len(chosen) > 1 and "cpu" in chosen:
        raise click.UsageError("Name them cpu:1, cpu:2 and so on: what is asked of `cpu` goes to any of them.")
    lines: list[Line] = []

    def emit(line: Line) -> None:
        lines.append(line)
        emit_jsonl([line])
        if report is not None:
            with report.open("a") as file:
                file.write(json.dumps(line) + "\n")

    # As Ctrl-C does, so that workers are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    order = Order(tuple(chosen), seconds, count, repeats, budget, emit)
    for name in parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix="drkq-md-", dir="/tmp"))
        began = time.monotonic()
        say(f"{name} on {', '.join(chosen)} ...")
        try:
            asyncio.run(attempt(name, order, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        say(f"{name}: {time.monotonic() - began:.0f} s")
    raise SystemExit(exit_code(lines))


async def attempt(name: str, order: Order, folder: Path) -> None:
    """Run a part, or say why it did not come to its end."""
    try:
        async with asyncio.timeout(order.seconds + GRACE_S):
            await PARTS[name](order, folder)
    except TimeoutError:
        order.tell(name, "end", {"not_run": f"it was not done after {order.seconds + GRACE_S:.0f} s"})
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one part, the others are measured
        order.tell(name, "end", {"not_run": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
