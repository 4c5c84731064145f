"""What a person waits for beside the judge: the start of the embedded stack, and a command while it runs.

`PYTHONPATH=. python benchmarks/one_command.py --device cuda:0` runs `drkq up`, several `drkq eval` of kernels that were
never seen, and `drkq down`, as processes, in folders of its own. It prints one JSON line: seconds until the stack runs,
and after how many of them which process was there; seconds of each `drkq eval` beyond the judge's own
(`durations_s.total` of its evaluation), and those of the judge.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.evaluate_throughput import variant

ROOT = Path(__file__).parents[1]
#: What processes of a stack are called, by a part of their commands; the first that fits counts.
PROCESSES = {"redis-server": "broker", "-m celery": "celery", "workers.forkserver": "zygote", "-m workers": "worker"}
PROCESSES |= {"local.stack": "stack"}
_POLL_S = 0.02


class Command(NamedTuple):
    """A `drkq` command that has ended."""

    seconds: float
    output: str


def drkq(environment: Mapping[str, str], *words: str) -> Command:
    """Run a command; whatever it says to people is passed on.

    Raises:
        click.ClickException: it failed.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "drkernel_q", *words]
    done = subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"drkq {words[0]} ended with {done.returncode}")
    return Command(time.perf_counter() - start, done.stdout)


@contextmanager
def arrivals() -> Iterator[dict[str, list[float]]]:
    """Note when processes of a stack appear during a block, seconds from its beginning, by what they are called."""
    found: dict[str, list[float]] = {}
    known = {path.name for path in Path("/proc").iterdir()}
    started, over = time.perf_counter(), threading.Event()

    def look() -> None:
        while not over.wait(_POLL_S):
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it is gone again
                    command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    name = next((name for part, name in PROCESSES.items() if part in command), None)
                    if name and (path.name, name) not in seen and path.name not in known:
                        seen.add((path.name, name))
                        found.setdefault(name, []).append(round(time.perf_counter() - started, 2))

    seen: set[tuple[str, str]] = set()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--count", default=5, show_default=True, help="Kernels to judge.")
def main(device: str, count: int) -> None:
    """Start, judge, stop; print the line."""
    with tempfile.TemporaryDirectory(prefix="drkq-") as name:
        folder = Path(name)
        own = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | own | {"XDG_RUNTIME_DIR": name, "PYTHONPATH": os.pathsep.join(paths)}
        with arrivals() as there:
            started = drkq(environment, "up", "--device", device)
        try:
            overheads, judged = [], []
            for number in range(count + 1):  # the first one starts the judge
                path = folder / f"{number}.py"
                path.write_text(variant(number), encoding="utf-8")
                done = drkq(environment, "eval", str(path), "--problem", "softmax", "--device", device, "--json")
                judged.append(json.loads(done.output)["durations_s"]["total"])
                overheads.append(done.seconds - judged[-1])
        finally:
            drkq(environment, "down")
    found = {
        "start_s": round(started.seconds, 2),
        "there_s": there,
        "first_overhead_s": round(overheads[0], 3),
        "overheads_s": [round(each, 3) for each in overheads[1:]],
        "overhead_s": round(statistics.median(overheads[1:]), 3),
        "judge_s": round(statistics.median(judged[1:]), 3),
    }
    click.echo(json.dumps({"benchmark": "one_command", "device": device} | found))


if __name__ == "__main__":
    main()
