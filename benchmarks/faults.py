"""Whether innocent evaluations suffer from faulty ones: many of both, in a random mix, on one worker.

`PYTHONPATH=. python benchmarks/faults.py --device cuda:0 --seconds 560` prints a table and one JSON line: innocent
failures and wrong outcomes (both should be 0), evaluations a minute, and host and device memory of the worker, the
zygote and the judge in the first and in the last tenth of the run. On a GPU faulty candidates make real CUDA errors; on
the cpu device others take their place.
"""

import json
import math
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from drkernel_q.evaluation import Evaluation, Failure, Integrity, Outcome, Stage
from tests.faulty import ILLEGAL_ADDRESS, INFINITE_LOOP, OUT_OF_DEVICE_MEMORY, Faulty, in_call, named
from tests.judging import EXAMPLES, Bench, builtin

STAGES = [stage.value for stage in Stage]
KINDS = {
    "cuda": (ILLEGAL_ADDRESS, INFINITE_LOOP, named("segfault"), OUT_OF_DEVICE_MEMORY, named("hang in import")),
    "cpu": (
        named("abort"),
        in_call("infinite loop", "while True: pass", Outcome.TIMEOUT, "deadline"),
        named("segfault"),
        named("out of host memory"),
        named("hang in import"),
    ),
}
SOFTMAX = (EXAMPLES / "softmax.py").read_text()
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Row(NamedTuple):
    """What is kept of one evaluation: little, since the memory of this process is measured too."""

    kind: str
    """`honest`, or the name of the fault."""
    wrong: str
    """What was said about the candidate, if it is not true."""
    seconds: float
    bytes_in_use: dict[str, int]
    """After the evaluation."""


def is_right(faulty: Faulty | None, result: Evaluation | Failure) -> bool:
    """Whether what was said about a candidate is true; None is an honest one."""
    if faulty is not None:
        return faulty.holds(result)
    if isinstance(result, Failure) or result.protocol is None:
        return False
    clean = result.integrity is Integrity.CLEAN or Stage.INTEGRITY not in result.protocol.stages
    return clean and (result.outcome, result.fault) == (Outcome.CORRECT, None)


def described(result: Evaluation | Failure) -> str:
    """Say what was said, in a line."""
    if isinstance(result, Failure):
        return f"{result.kind}: {result.message[:200]}"
    words = (result.outcome.value, result.integrity.value, result.fault, [item.code for item in result.evidence])
    return f"{' '.join(map(str, words))} {(result.error or '')[-120:]!r}"


def plan(kinds: tuple[Faulty, ...], count: int, share: float) -> list[Faulty | None]:
    """Draw the mix: as many of each kind, spread at random among honest candidates (None)."""
    faulty = [kinds[number % len(kinds)] for number in range(round(count * share))]
    mix: list[Faulty | None] = [*faulty, *[None] * (count - len(faulty))]
    random.shuffle(mix)
    return mix


def memory(bench: Bench) -> dict[str, int]:
    """Measure resident memory of our processes, and device memory in use by anybody, bytes."""
    family = bench.evaluator.family
    pids = {"worker": os.getpid()}
    if family._zygote is not None and family._zygote.process is not None:
        pids["zygote"] = family._zygote.process.pid
    if family._kept is not None:
        pids["judge"] = family._kept.child.pid
    found = {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE for name, pid in pids.items()}
    device = bench.evaluator.health.monitor.used_bytes()
    return found if device is None else found | {"device": device}


def trend(rows: list[Row], name: str) -> dict[str, float] | None:
    """Compare the first tenth of a run with the last: medians in MiB, and the growth in percent."""
    series = [row.bytes_in_use[name] / 2**20 for row in rows if name in row.bytes_in_use]
    tenth = max(len(series) // 10, 1)
    if not series:
        return None
    first, last = statistics.median(series[:tenth]), statistics.median(series[-tenth:])
    growth = 100 * (last / first - 1)
    return {"first_mib": round(first, 1), "last_mib": round(last, 1), "growth_percent": round(growth, 2)}


def summary(rows: list[Row], seconds: float, device: str) -> dict[str, Any]:
    """Add everything up."""
    kinds = list(dict.fromkeys(["honest", *(row.kind for row in rows)]))
    groups = {kind: [row for row in rows if row.kind == kind] for kind in kinds}
    wrong = {kind: sum(bool(row.wrong) for row in group) for kind, group in groups.items()}
    trends = {name: trend(rows, name) for name in ("worker", "zygote", "judge", "device")}
    return {
        "benchmark": "faults",
        "device": device,
        "evaluations": len(rows),
        "faulty": len(rows) - len(groups["honest"]),
        "innocent_failures": wrong["honest"],
        "wrong_outcomes": sum(wrong.values()) - wrong["honest"],
        "evaluations_a_minute": round(60 * len(rows) / seconds, 1),
        "kinds": {
            kind: {
                "evaluations": len(group),
                "wrong": wrong[kind],
                "p50_s": round(statistics.median(row.seconds for row in group), 3) if group else None,
            }
            for kind, group in groups.items()
        },
        "memory": {name: found for name, found in trends.items() if found is not None},
    }


def table(rows: list[Row], found: dict[str, Any]) -> str:
    """Format the summary for people."""
    lines = ["| candidates | evaluations | wrong | p50 s |", "|---|---|---|---|"]
    lines += [f"| {kind} | {' | '.join(map(str, each.values()))} |" for kind, each in found["kinds"].items()]
    lines += ["", "| memory | first tenth MiB | last tenth MiB | growth % |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(map(str, each.values()))} |" for name, each in found["memory"].items()]
    return "\n".join([*lines, *(f"WRONG: {row.kind}: {row.wrong}" for row in rows if row.wrong)])


def run(
    bench: Bench, mix: list[Faulty | None], ends_at: float, kernel_deadline_s: float, stages: tuple[str, ...]
) -> list[Row]:
    """Judge one after the other."""
    problem = builtin("softmax")
    rows: list[Row] = []
    for number, faulty in enumerate(mix):
        if time.monotonic() > ends_at or bench.evaluator.quarantine is not None:
            break
        source = f"{SOFTMAX}\n# {number}\n" if faulty is None else faulty.source
        start = time.monotonic()
        result = bench.result(
            problem, source, stages=stages, kernel_deadline_s=kernel_deadline_s, deadline_s=120.0, timing_budget_s=0.5
        )
        seconds = time.monotonic() - start
        wrong = "" if is_right(faulty, result) else described(result)
        rows.append(Row(faulty.name if faulty else "honest", wrong, seconds, memory(bench)))
        if wrong or len(rows) % 50 == 0:
            click.echo(f"{len(rows)} of {len(mix)} {wrong and 'WRONG ' + wrong}", err=True)
    return rows


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--evaluations", default=1000, show_default=True, help="How many.")
@click.option("--share", default=0.2, show_default=True, help="Share of faulty candidates.")
@click.option("--seconds", default=math.inf, help="Begin no further evaluation after this.")
@click.option("--kernel-deadline", default=3.0, show_default=True, help="Seconds after which a candidate hangs.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=click.Choice(STAGES),
    help="Stages; all unless named.",
)
@click.option("--seed", default=0, show_default=True, help="Of the order.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="File that the JSON line is added to.")
def main(
    device: str,
    evaluations: int,
    share: float,
    seconds: float,
    kernel_deadline: float,
    stages: tuple[str, ...],
    seed: int,
    report: Path | None,
) -> None:
    """Judge the mix and say what came of it; exit 1 if any innocent suffered or any outcome was wrong."""
    random.seed(seed)
    kind = device.partition(":")[0]
    bench = Bench(device, memory_bytes=2**30 if kind == "cpu" else 32 * 2**30)
    bench.evaluator.wait_ready()
    start = time.monotonic()
    rows = run(bench, plan(KINDS[kind], evaluations, share), start + seconds, kernel_deadline, stages or tuple(Stage))
    found = summary(rows, time.monotonic() - start, device)
    quarantined = bench.evaluator.quarantine
    found |= {"quarantined": quarantined.model_dump() if quarantined else None}
    bench.close()
    click.echo(table(rows, found))
    line = json.dumps(found)
    click.echo(line)
    if report is not None:
        with report.open("a") as file:
            file.write(line + "\n")
    raise SystemExit(bool(found["innocent_failures"] or found["wrong_outcomes"] or quarantined))


if __name__ == "__main__":
    main()
