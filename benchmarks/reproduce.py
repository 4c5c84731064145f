"""Measure again what docs/measurements.md says of a GPU, in the order of its worth, as far as the time goes.

`PYTHONPATH=. python benchmarks/reproduce.py --device cuda:0 --out measured --seconds 1700` runs the benchmarks below
one after the other, each with the seconds that it needs at most, and leaves out what no longer fits. With a second
`--device` each takes the next one that is free, so two of them need half the time (and share the host, as workers of
two devices do); a benchmark that wants a quiet host, or all devices, runs when nothing else does. Some ask for a
trained policy (`--policy`, a folder that `python -m benchmarks.claims restore` made) or for kernels for KernelBench
(`--kernels`, which `benchmarks/kernelbench_folder.py` makes), and are left out without. What each prints is in
`measured/NAME.log`, its last line is shown, and a line of JSON tells of each in `measured/runs.jsonl`: command, device,
exit code, seconds. `--list` shows what there is; names choose.
A benchmark whose program does not even show its help is named first, with the reason, and left out.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import click

#: Seconds that a benchmark gets to end by itself once its own limit is over.
GRACE_S = 20.0
#: Words of commands that stand for folders, and the options that name these.
FOLDERS = {"POLICY": "--policy", "KERNELS": "--kernels"}


class Step(NamedTuple):
    """One benchmark; `DEVICE`, `DEVICES` (by comma), `OUT` (a file), `FOLDER`, `SECONDS` and folders are filled in."""

    name: str
    command: str
    seconds: float
    """Longest that it may take, its start included."""
    apart: bool = False
    """Whether nothing else may run meanwhile."""

    @property
    def folders(self) -> set[str]:
        """Words of `FOLDERS` that it needs."""
        return {word for word in FOLDERS if word in self.command}

    @property
    def program(self) -> tuple[str, ...]:
        """What is run, without its options."""
        words = shlex.split(self.command)
        options = (place for place, word in enumerate(words) if word.startswith("-") and word != "-m")
        return tuple(words[: next(options, len(words))])


_THROUGHPUT = "benchmarks/evaluate_throughput.py --device DEVICE"
_SUITE = "-m tests.adversarial --device DEVICE --jobs 3 --seconds SECONDS --json OUT"
_KERNELBENCH = "kernelbench/1 kernelbench/2 kernelbench/3"
_POLICY = "--model POLICY/sft/model --device DEVICE"
_ENGINES = f"benchmarks/engines.py {_POLICY} --problems POLICY/heldout --templates brief --max-new-tokens 256 --eager"
_SEARCHES = f"benchmarks/searches.py {_POLICY} --out FOLDER"
_LITTLE = (
    "--preset demo --model POLICY/sft/model --problems POLICY/train --sampler vllm --steps 2"
    " --set rollout.templates=brief --set rollout.turns=2 --set mismatch.enabled=true"
    " --set 'sampler.flags=[\"--enforce-eager\"]'"
)
_HOST = "-m benchmarks.multi_device --devices DEVICES --seconds SECONDS --json OUT --part"
STEPS = (
    Step(
        "contexts",
        "benchmarks/contexts.py --devices DEVICES --processes 1,3 --seconds 2 --variant worker --confined",
        90,
        apart=True,
    ),
    Step("one_command", "benchmarks/one_command.py --device DEVICE", 90, apart=True),
    *(Step(f"throughput_{lanes}", f"{_THROUGHPUT} --lanes {lanes} --seconds 30", 80, apart=True) for lanes in (1, 3)),
    *(
        Step(f"checks_{lanes}", f"{_THROUGHPUT} --lanes {lanes} --seconds 15 --checks", 60, apart=True)
        for lanes in (1, 3)
    ),
    Step("attacks", f"{_SUITE} --only attack", 480),
    Step("honest", f"{_SUITE} --only honest --repeat 3", 480),
    Step("stopwatch", "benchmarks/stopwatch.py --device DEVICE --repeats 20 --seconds SECONDS --json OUT", 300),
    Step("requests", "benchmarks/requests.py --device DEVICE --repeats 5", 60),
    Step("engines_float32", f"{_ENGINES} --dtype float32", 240),
    Step("engines_bfloat16", f"{_ENGINES} --dtype bfloat16", 240),
    # it trains and samples on the first device, whichever judges
    Step("train_by_vllm", f"-m drkernel_q train {_LITTLE} --device DEVICE --out FOLDER", 300, apart=True),
    Step("searches", f"{_SEARCHES} --problems POLICY/heldout --problems builtin/1", 400),
    Step("claims", "-m benchmarks.claims evaluate --dir POLICY --device cuda --seconds SECONDS", 900, apart=True),
    Step("gpu_tests", "-m pytest -q --tb=short -m gpu tests/gpu --session-timeout SECONDS", 360),
    *(
        Step(f"host_{part}", f"{_HOST} {part}", seconds, apart=True)
        for part, seconds in (("scaling", 300), ("interference", 300), ("faults", 300), ("training", 300))
    ),
    Step("faults", "benchmarks/faults.py --device DEVICE --seconds SECONDS --json OUT", 1500),
    Step("kernelbench", f"-m drkernel_q bench {_KERNELBENCH} --device DEVICE --kernels KERNELS --backend any", 1500),
)


class Site(NamedTuple):
    """Where steps run."""

    devices: Sequence[str]
    out: Path
    folders: Mapping[str, Path]
    """By their words in commands."""

    def filled(self, step: Step, device: str, left_s: float) -> list[str]:
        """Return the command of a step that has at most `left_s`."""
        seconds = min(step.seconds, left_s) - GRACE_S
        own = {"OUT": self.out / f"{step.name}.jsonl", "FOLDER": self.out / step.name, "SECONDS": f"{seconds:.0f}"}
        values = {"DEVICES": ",".join(self.devices), "DEVICE": device} | own | dict(self.folders)
        return [sys.executable, *(_filled(word, values) for word in shlex.split(step.command))]

    def run(self, step: Step, device: str, left_s: float) -> dict[str, object]:
        """Run one step and return what is noted of it."""
        command, start = self.filled(step, device, left_s), time.monotonic()
        with (self.out / f"{step.name}.log").open("w") as log:
            environment = dict(os.environ)
            if not step.apart and "DEVICE" not in step.command:  # it finds a device by itself, and is to find this one
                environment["CUDA_VISIBLE_DEVICES"] = device.partition(":")[2]
            with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
                try:
                    code = process.wait(min(step.seconds, left_s))
                except subprocess.TimeoutExpired:
                    process.terminate()
                    code = process.wait()
        took_s = round(time.monotonic() - start, 1)
        where = ",".join(self.devices) if "DEVICES" in step.command else device
        return {
            "step": step.name,
            "device": where,
            "exit_code": code,
            "seconds": took_s,
            "command": shlex.join(command),
        }


def _filled(word: str, values: Mapping[str, object]) -> str:
    """Fill in a word, or the folder that a path begins with."""
    name, slash, rest = word.partition("/")
    return f"{values[name]}{slash}{rest}" if name in values else word


class Campaign:
    """Steps, run as long as there is time."""

    def __init__(self, site: Site, seconds: float) -> None:
        """Begin now, and take so many seconds at most."""
        self.site = site
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds
        self.failed = False
        self.left: list[Step] = []
        """What was not run."""
        self._lock = threading.Lock()

    def run(self, steps: Iterable[Step]) -> None:
        """Run steps in their order; those that may run beside each other take the next device that is free."""
        for apart, group in groupby(steps, key=lambda step: step.apart):
            waiting = deque(group)
            devices = self.site.devices[:1] if apart else self.site.devices
            threads = [threading.Thread(target=self._take_all, args=(waiting, device)) for device in devices]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.left += waiting

    def _take_all(self, waiting: deque[Step], device: str) -> None:
        while True:
            with self._lock:
                left_s = self.ends_at - time.monotonic()
                step = next((each for each in waiting if each.seconds <= left_s or each.seconds > self.seconds), None)
                if step is None or left_s < 2 * GRACE_S:
                    return
                waiting.remove(step)
            note = self.site.run(step, device, left_s)
            with self._lock:
                self._tell(step, note)

    def _tell(self, step: Step, note: dict[str, object]) -> None:
        self.failed = self.failed or bool(note["exit_code"])
        with (self.site.out / "runs.jsonl").open("a") as file:
            file.write(json.dumps(note) + "\n")
        end = last_line(self.site.out / f"{step.name}.log")
        click.echo(f"{step.name} on {note['device']}: exit code {note['exit_code']}, {note['seconds']} s: {end}")


def last_line(path: Path) -> str:
    """Return the end of what a step printed."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "printed nothing"


def broken(steps: Sequence[Step]) -> dict[tuple[str, ...], str]:
    """Say why programs of steps cannot begin, by asking each for its help: what is missing is known at once."""
    programs = list(dict.fromkeys(step.program for step in steps))
    with ThreadPoolExecutor(8) as pool:
        reasons = list(pool.map(_why_broken, programs))
    return {program: reason for program, reason in zip(programs, reasons, strict=True) if reason}


def _why_broken(program: Sequence[str]) -> str:
    done = subprocess.run([sys.executable, *program, "--help"], capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"it ends with exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def chosen(names: tuple[str, ...]) -> list[Step]:
    """Choose steps by name, in the order named; all without any.

    Raises:
        click.BadParameter: there is no such step.
    """
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(known)}")
    return [known[name] for name in names or known]


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--device", "devices", multiple=True, default=("cuda:0",), show_default=True, help="May be repeated.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("measured"), show_default=True, help="Folder.")
@click.option("--seconds", default=1700.0, show_default=True, help="For all together.")
@click.option("--policy", type=click.Path(path_type=Path, exists=True), help="Folder of a trained policy.")
@click.option("--kernels", type=click.Path(path_type=Path, exists=True), help="Folder of kernels for KernelBench.")
@click.option("--list", "shows", is_flag=True, help="Show what there is and the seconds of each at most.")
def main(
    names: tuple[str, ...],
    devices: tuple[str, ...],
    out: Path,
    seconds: float,
    policy: Path | None,
    kernels: Path | None,
    shows: bool,
) -> None:
    """Run what there is time for; exit 1 if any of it failed."""
    steps = chosen(names)
    if shows:
        for step in steps:
            beside = "apart" if step.apart else ""
            click.echo(f"{step.name:18} {step.seconds:6.0f} s  {beside:5}  python {step.command}")
        return
    out.mkdir(parents=True, exist_ok=True)
    folders = {word: path for word, path in (("POLICY", policy), ("KERNELS", kernels)) if path is not None}
    campaign = Campaign(Site(devices, out, folders), seconds)
    cannot = broken(steps)
    for step in steps:
        if reason := cannot.get(step.program):
            click.echo(f"{step.name}: not run: {reason}")
    campaign.run(step for step in steps if step.folders <= set(folders) and step.program not in cannot)
    for step in campaign.left:
        click.echo(f"{step.name}: not run, {step.seconds:.0f} s did not fit")
    for step in steps:
        if lacking := step.folders - set(folders):
            click.echo(f"{step.name}: not run, it needs {' and '.join(FOLDERS[word] for word in sorted(lacking))}")
            campaign.left.append(step)
    raise SystemExit(campaign.failed or bool(campaign.left) or bool(cannot))


if __name__ == "__main__":
    main()
