"""How far timings can be trusted: the same kernels judged again and again, each time in fresh processes.

`PYTHONPATH=. python benchmarks/stopwatch.py --device cuda:0` prints a table and, with `--json`, a line for each
evaluation. Rows: the example softmax (about 70 us on an H200), a softmax of about 10 us, and torch's own softmax as the
candidate (A/A: the speedup should be 1). For each: median speedup, its coefficient of variation, how often the 95 %
interval holds the pooled median, and event time over the judge's own clock. Then the seconds of each stage, and what
integrity adds to correctness, timing and profile alone.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from drkernel_q.evaluation import Evaluation, Stage
from drkernel_q.problem import Problem
from tests.judging import EXAMPLES, Bench, builtin

WRAPPER = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
"""
WITHOUT_INTEGRITY = (Stage.CORRECTNESS, Stage.PROFILE, Stage.TIMING)


class Row(NamedTuple):
    """A kernel that is judged repeatedly."""

    name: str
    problem: Problem
    source: str
    protocol: dict[str, Any]


def rows() -> Iterator[Row]:
    """Give the kernels."""
    softmax, example = builtin("softmax"), (EXAMPLES / "softmax.py").read_text()
    small = softmax.resized({"batch_size": 256})
    yield Row("softmax", softmax, example, {})
    yield Row("small softmax", small, example, {})
    yield Row("A/A", softmax, WRAPPER, {"backend": "any"})
    yield Row("A/A, small", small, WRAPPER, {"backend": "any"})
    yield Row("without integrity", softmax, example, {"stages": WITHOUT_INTEGRITY})


def summary(name: str, found: list[Evaluation]) -> dict[str, Any]:
    """Add up what evaluations of one row gave."""
    timings = [evaluation.timing for evaluation in found if evaluation.timing is not None]
    if len(timings) < 2:
        return {"row": name, "evaluations": len(found), "error": found[0].error if found else "none"}
    speedups = [timing.speedup for timing in timings]
    pooled = statistics.median(speedups)
    clocks = [timing.candidate_ms / timing.judge_ms for timing in timings if timing.judge_ms]
    return {
        "row": name,
        "evaluations": len(found),
        "clean": sum(evaluation.honest_and_correct for evaluation in found),
        "candidate_ms": round(statistics.median(timing.candidate_ms for timing in timings), 5),
        "speedup": round(pooled, 4),
        "least": round(min(speedups), 4),
        "most": round(max(speedups), 4),
        "cv_percent": round(100 * statistics.stdev(speedups) / statistics.fmean(speedups), 3),
        "covered": sum(timing.speedup_low <= pooled <= timing.speedup_high for timing in timings),
        "half_width_percent": round(
            50 * statistics.median(math.log(timing.speedup_high / timing.speedup_low) for timing in timings), 3
        ),
        "event_over_clock": round(statistics.median(clocks), 4) if clocks else None,
        "event_over_clock_range": [round(min(clocks), 3), round(max(clocks), 3)] if clocks else None,
        "durations_s": {
            stage: round(statistics.median(evaluation.durations_s.get(stage, 0.0) for evaluation in found), 3)
            for stage in found[0].durations_s
        },
    }


def table(summaries: list[dict[str, Any]]) -> str:
    """Format the summaries in Markdown."""
    columns = ["row", "evaluations", "clean", "candidate_ms", "speedup", "least", "most", "cv_percent", "covered"]
    columns += ["half_width_percent", "event_over_clock", "event_over_clock_range"]
    lines = [f"| {' | '.join(columns)} |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(str(one.get(column, "")) for column in columns) + " |" for one in summaries]
    lines += ["", *(f"{one['row']}: {one['durations_s']}" for one in summaries if "durations_s" in one)]
    totals = {one["row"]: one["durations_s"]["total"] for one in summaries if "durations_s" in one}
    if {"softmax", "without integrity"} <= totals.keys():
        added = totals["softmax"] / totals["without integrity"] - 1.0
        lines.append(f"integrity adds {added:.1%} to correctness, timing and profile alone")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--repeats", default=20, show_default=True, help="Evaluations of each row.")
@click.option("--only", multiple=True, help="Only the rows of this name; may be repeated.")
@click.option("--seconds", default=math.inf, help="Begin no further evaluation after this.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="File for one JSON line an evaluation.")
def main(device: str, repeats: int, only: tuple[str, ...], seconds: float, report: Path | None) -> None:
    """Judge all rows in turn, so that none of them has a quieter machine than the others."""
    ends_at = time.monotonic() + seconds
    bench = Bench(device, memory_bytes=3 * 2**30 if device == "cpu" else 32 * 2**30)
    chosen = [row for row in rows() if not only or row.name in only]
    found: dict[str, list[Evaluation]] = {row.name: [] for row in chosen}
    with (report or Path("/dev/null")).open("w") as lines:
        for number in range(repeats):
            for row in chosen:
                if time.monotonic() > ends_at:
                    break
                evaluation = bench.judge(row.problem, row.source, timing_budget_s=2.0, deadline_s=120.0, **row.protocol)
                found[row.name].append(evaluation)
                document = evaluation.model_dump(mode="json", exclude={"stdout", "environment"})
                lines.write(json.dumps({"row": row.name, "number": number} | document) + "\n")
                lines.flush()
            click.echo(f"{number + 1} of {repeats}", err=True)
    bench.close()
    click.echo(table([summary(name, evaluations) for name, evaluations in found.items()]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
