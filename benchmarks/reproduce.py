"""Measure again what docs/measurements.md says of a GPU, in the order of its worth, as far as the time goes.

`PYTHONPATH=. python benchmarks/reproduce.py --device cuda:0 --out measured --seconds 1700` runs the benchmarks below
one after the other, each with the seconds that it needs at most, and leaves out what no longer fits. With a second
`--device` each takes the next one that is free, so two of them need half the time (and share the host, as workers of
two devices do). What each prints is in `measured/NAME.log`, its last line is shown, and a line of JSON tells of each in
`measured/runs.jsonl`: command, device, exit code, seconds. `--list` shows what there is; names choose.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import click

#: Seconds that a benchmark gets to end by itself once its own limit is over.
GRACE_S = 20.0


class Step(NamedTuple):
    """One benchmark; `DEVICE`, `OUT` and `SECONDS` are filled in."""

    name: str
    command: str
    seconds: float
    """Longest that it may take, its start included."""


_THROUGHPUT = "benchmarks/evaluate_throughput.py --device DEVICE"
_SUITE = "-m tests.adversarial --device DEVICE --jobs 3 --seconds SECONDS --json OUT"
STEPS = (
    Step("requests", "benchmarks/requests.py --device DEVICE --repeats 5", 60),
    *(Step(f"throughput_{lanes}", f"{_THROUGHPUT} --lanes {lanes} --seconds 40", 90) for lanes in (1, 3, 2, 4)),
    Step("honest", f"{_SUITE} --only honest --repeat 3", 400),
    Step("attacks", f"{_SUITE} --only attack", 480),
    Step("stopwatch", "benchmarks/stopwatch.py --device DEVICE --repeats 20 --seconds SECONDS --json OUT", 300),
    Step("gpu_tests", "-m pytest -q --tb=short -m gpu tests/gpu --session-timeout SECONDS", 360),
    Step("faults", "benchmarks/faults.py --device DEVICE --seconds SECONDS --json OUT", 1500),
)


def in_order(names: tuple[str, ...]) -> deque[Step]:
    """Choose steps by name, in the order named; all without any.

    Raises:
        click.BadParameter: there is no such step.
    """
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(known)}")
    return deque(known[name] for name in names or known)


def filled(step: Step, device: str, out: Path, left_s: float) -> list[str]:
    """Return the command of a step that has at most `left_s`."""
    seconds = min(step.seconds, left_s) - GRACE_S
    values = {"DEVICE": device, "OUT": str(out / f"{step.name}.jsonl"), "SECONDS": f"{seconds:.0f}"}
    return [sys.executable, *(values.get(word, word) for word in shlex.split(step.command))]


def run(step: Step, device: str, out: Path, left_s: float) -> dict[str, object]:
    """Run one step and return what is noted of it."""
    command, start = filled(step, device, out, left_s), time.monotonic()
    with (out / f"{step.name}.log").open("w") as log:
        environment = dict(os.environ)
        if "DEVICE" not in step.command:  # it finds a device by itself, and is to find this one
            environment["CUDA_VISIBLE_DEVICES"] = device.partition(":")[2]
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                code = process.wait(min(step.seconds, left_s))
            except subprocess.TimeoutExpired:
                process.terminate()
                code = process.wait()
    took_s = round(time.monotonic() - start, 1)
    return {"step": step.name, "device": device, "exit_code": code, "seconds": took_s, "command": shlex.join(command)}


def last_line(path: Path) -> str:
    """Return the end of what a step printed."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "printed nothing"


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--device", "devices", multiple=True, default=("cuda:0",), show_default=True, help="May be repeated.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("measured"), show_default=True, help="Folder.")
@click.option("--seconds", default=1700.0, show_default=True, help="For all together.")
@click.option("--list", "shows", is_flag=True, help="Show what there is and the seconds of each at most.")
def main(names: tuple[str, ...], devices: tuple[str, ...], out: Path, seconds: float, shows: bool) -> None:
    """Run what there is time for; exit 1 if any of it failed."""
    steps = in_order(names)
    if shows:
        for step in steps:
            click.echo(f"{step.name:14} {step.seconds:6.0f} s  python {step.command}")
        return
    out.mkdir(parents=True, exist_ok=True)
    ends_at, noted, lock = time.monotonic() + seconds, [], threading.Lock()

    def take_all(device: str) -> None:
        while steps:
            with lock:
                left_s = ends_at - time.monotonic()
                fitting = next((step for step in steps if step.seconds <= left_s or step.seconds > seconds), None)
                if fitting is None or left_s < 2 * GRACE_S:
                    return
                steps.remove(fitting)
            note = run(fitting, device, out, left_s)
            with lock:
                noted.append(note)
                with (out / "runs.jsonl").open("a") as file:
                    file.write(json.dumps(note) + "\n")
                end = last_line(out / f"{fitting.name}.log")
                click.echo(f"{fitting.name} on {device}: exit code {note['exit_code']}, {note['seconds']} s: {end}")

    threads = [threading.Thread(target=take_all, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for step in steps:
        click.echo(f"{step.name}: not run, {step.seconds:.0f} s did not fit")
    raise SystemExit(any(note["exit_code"] for note in noted) or bool(steps))


if __name__ == "__main__":
    main()
