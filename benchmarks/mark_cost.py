"""What a mark of the judge's clock costs whoever makes it: with somebody who wakes up for each, and without.

`PYTHONPATH=. python benchmarks/mark_cost.py` makes marks 0.4 ms of sleep apart, and prints one JSON line: the median
time between two, microseconds, for each of several rounds. `process` marks as a candidate does, to another process that
waits and looks at its own clock; `nobody` looks at the clock alone; `thread` does that and wakes a thread of its own,
as the judge's empty calls do.
"""

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import click

from workers.judging.clock import listener

APART_S = 4e-4


def make(mark: Callable[[], object], count: int) -> None:
    """Make marks, each after a sleep."""
    for _ in range(count):
        time.sleep(APART_S)
        mark()


def heard_by_another_process(count: int) -> list[float]:
    """Return the moments at which this process heard of the marks of a fork."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        make(lambda: os.write(theirs, b"\0"), count)
        os._exit(0)
    moments = []
    for _ in range(count):
        os.read(ours, 1)
        moments.append(time.perf_counter())
    os.waitpid(pid, 0)
    os.close(ours)
    os.close(theirs)
    return moments


def heard_by_nobody(count: int) -> list[float]:
    """Return the moments of marks that are no more than a look at the clock."""
    moments: list[float] = []
    make(lambda: moments.append(time.perf_counter()), count)
    return moments


def heard_by_a_thread(count: int) -> list[float]:
    """Return the moments of marks that wake a thread."""
    moments: list[float] = []
    with listener() as heard:

        def mark() -> None:
            os.write(heard, b"\0")
            moments.append(time.perf_counter())

        make(mark, count)
    return moments


WAYS = {"process": heard_by_another_process, "nobody": heard_by_nobody, "thread": heard_by_a_thread}


@click.command(help=__doc__)
@click.option("--count", default=400, show_default=True, help="Marks of a round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds, in turns.")
def main(count: int, rounds: int) -> None:
    """Make the marks."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            gaps = [1e6 * (end - begin) for begin, end in pairwise(way(count))]
            found[name].append(round(median(gaps), 1))
    click.echo(json.dumps({"benchmark": "mark_cost", "marks": count, "between_us": found}))


if __name__ == "__main__":
    main()
