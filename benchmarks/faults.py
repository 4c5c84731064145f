"""Whether innocent evaluations suffer from faulty ones: many of both, in a random mix, in the lanes of one device.

`PYTHONPATH=. python benchmarks/faults.py --device cuda:0 --seconds 560` prints a table and one JSON line: innocent
failures and wrong outcomes (both should be 0), evaluations a minute, host memory of the worker, its zygotes and its
judges in the first and in the last tenth of the run, and device memory before and after it, when nothing is judged. On
a GPU faulty candidates make real CUDA errors; on the cpu device others take their place.
"""

import json
import math
import os
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.lanes import open_lanes, spread
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
#: Until candidate processes that wait for work have their contexts, seconds.
REST_S = 3.0
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
        return f"{result.kind}: {result.message[-400:]}"
    evidence = [f"{item.code}: {item.detail}" for item in result.evidence]
    words = (result.outcome.value, result.integrity.value, result.fault, evidence)
    return f"{' '.join(map(str, words))} {(result.error or '')[-120:]!r}"


def plan(kinds: tuple[Faulty, ...], count: int, share: float) -> list[Faulty | None]:
    """Draw the mix: as many of each kind, spread at random among honest candidates (None)."""
    faulty = [kinds[number % len(kinds)] for number in range(round(count * share))]
    mix: list[Faulty | None] = [*faulty, *[None] * (count - len(faulty))]
    random.shuffle(mix)
    return mix


def memory(benches: Sequence[Bench]) -> dict[str, int]:
    """Measure resident memory of our processes, of zygotes and judges on average, bytes."""
    families = [bench.evaluator.family for bench in benches]
    zygotes = [family._zygote.process.pid for family in families if family._zygote and family._zygote.process]
    judges = [family._kept.child.pid for family in families if family._kept]
    found = {"worker": _resident_bytes([os.getpid()])}
    with suppress(OSError):  # one of them has just ended
        found |= {name: _resident_bytes(pids) for name, pids in (("zygote", zygotes), ("judge", judges)) if pids}
    return found


def device_bytes(benches: Sequence[Bench]) -> int | None:
    """Measure device memory in use when each lane has judged something and has nothing to do; None on a CPU."""
    for bench in benches:
        bench.judge(builtin("softmax"), SOFTMAX, deadline_s=120.0)
    time.sleep(REST_S)
    return benches[0].evaluator.health.monitor.used_bytes()


def _resident_bytes(pids: list[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * _PAGE // len(pids)


def trend(rows: list[Row], name: str) -> dict[str, float] | None:
    """Compare the medians of the first tenth of a run and of the last."""
    series = [row.bytes_in_use[name] for row in rows if name in row.bytes_in_use]
    tenth = max(len(series) // 10, 1)
    return growth(statistics.median(series[:tenth]), statistics.median(series[-tenth:])) if series else None


def growth(first: float, last: float) -> dict[str, float]:
    """Say by how much bytes have grown, in MiB and in percent."""
    percent = 100 * (last / first - 1)
    return {
        "first_mib": round(first / 2**20, 1),
        "last_mib": round(last / 2**20, 1),
        "growth_percent": round(percent, 2),
    }


def summary(rows: list[Row], seconds: float, device: str) -> dict[str, Any]:
    """Add everything up."""
    kinds = list(dict.fromkeys(["honest", *(row.kind for row in rows)]))
    groups = {kind: [row for row in rows if row.kind == kind] for kind in kinds}
    wrong = {kind: sum(bool(row.wrong) for row in group) for kind, group in groups.items()}
    trends = {name: trend(rows, name) for name in ("worker", "zygote", "judge")}
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
    lines += ["", "| memory | at first, MiB | at last, MiB | growth % |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(map(str, each.values()))} |" for name, each in found["memory"].items()]
    return "\n".join([*lines, *(f"WRONG: {row.kind}: {row.wrong}" for row in rows if row.wrong)])


def run(
    benches: Sequence[Bench],
    mix: list[Faulty | None],
    ends_at: float,
    options: dict[str, Any],
) -> list[Row]:
    """Judge all of them, until one of the devices is quarantined or it is too late."""
    problem = builtin("softmax")
    rows: list[Row] = []

    def judge(bench: Bench, job: tuple[int, Faulty | None]) -> bool:
        if time.monotonic() > ends_at or bench.evaluator.quarantine is not None:
            return False
        number, faulty = job
        source = f"{SOFTMAX}\n# {number}\n" if faulty is None else faulty.source
        start = time.monotonic()
        result = bench.result(problem, source, deadline_s=120.0, **options)
        seconds = time.monotonic() - start
        wrong = "" if is_right(faulty, result) else described(result)
        rows.append(Row(faulty.name if faulty else "honest", wrong, seconds, memory(benches)))
        if wrong or len(rows) % 50 == 0:
            click.echo(f"{len(rows)} of {len(mix)} {wrong and 'WRONG ' + wrong}", err=True)
        return True

    spread(benches, enumerate(mix), judge)
    return rows


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--evaluations", default=1000, show_default=True, help="How many.")
@click.option("--share", default=0.2, show_default=True, help="Share of faulty candidates.")
@click.option("--seconds", default=math.inf, help="Begin no further evaluation after this.")
@click.option("--kernel-deadline", default=3.0, show_default=True, help="Seconds after which a candidate hangs.")
@click.option("--budget", default=0.5, show_default=True, help="Seconds that the timing stage aims to stay within.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=click.Choice(STAGES),
    help="Stages; all unless named.",
)
@click.option("--lanes", default=0, show_default=True, help="Evaluations at a time; 0 is what a worker would choose.")
@click.option("--seed", default=0, show_default=True, help="Of the order.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="File that the JSON line is added to.")
def main(
    device: str,
    evaluations: int,
    share: float,
    seconds: float,
    kernel_deadline: float,
    budget: float,
    stages: tuple[str, ...],
    lanes: int,
    seed: int,
    report: Path | None,
) -> None:
    """Judge the mix and say what came of it; exit 1 if any innocent suffered or any outcome was wrong."""
    random.seed(seed)
    kind = device.partition(":")[0]
    benches = open_lanes(device, lanes, 2**30 if kind == "cpu" else None)
    before = device_bytes(benches)
    start = time.monotonic()
    mix = plan(KINDS[kind], evaluations, share)
    options = {"stages": stages or tuple(Stage), "kernel_deadline_s": kernel_deadline, "timing_budget_s": budget}
    rows = run(benches, mix, start + seconds, options)
    found = summary(rows, time.monotonic() - start, device) | {"lanes": len(benches)}
    quarantined = next(filter(None, (bench.evaluator.quarantine for bench in benches)), None)
    found |= {"quarantined": quarantined.model_dump() if quarantined else None}
    if before is not None and quarantined is None:
        found["memory"]["device"] = growth(before, device_bytes(benches) or 0)
    for bench in benches:
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
