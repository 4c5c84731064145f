"""Evaluations a minute on one device, each of another kernel, with everything on and a cold compile.

`PYTHONPATH=. python benchmarks/evaluate_throughput.py --device cuda:0` judges variants of the example softmax
(4096x8192 in fp32 on a GPU): 5 correctness trials, about 100 timed calls, profile and integrity, two fresh processes
for each kernel, in as many lanes as a worker would have. It prints one JSON line: evaluations a minute, median and 95th
percentile of the seconds of one, seconds by stage, the share of the time in which the device was timed or profiled, the
share in which it ran any kernel (as NVML counts; null on the cpu device), how far the speedups scatter, and by how much
the judge's clock differs from what was claimed (least, median, most). With `--checks` nothing is timed or profiled:
lanes share the device all the time, and it shows what that costs.
"""

import json
import math
import statistics
import time
from typing import Any

import click

from benchmarks.busy import busy_share, watched
from benchmarks.faults import described
from benchmarks.lanes import open_lanes, spread
from drkernel_q.evaluation import Evaluation, Stage
from tests.judging import EXAMPLES, Bench, builtin

#: Warps a program of the variants: every kernel has another name besides, so that none finds another's in a cache.
WARPS = (4, 8, 16)
#: Stages in which an evaluation has its device to itself.
ALONE = ("timing", "profile", "alone")


def variant(number: int) -> str:
    """Return the example under another name, with other warps."""
    source = (EXAMPLES / "softmax.py").read_text()
    return source.replace("softmax_kernel", f"softmax_kernel_{number}").replace(
        "num_warps=8", f"num_warps={WARPS[number % len(WARPS)]}"
    )


def summary(found: list[tuple[float, Evaluation]], elapsed_s: float) -> dict[str, Any]:
    """Add everything up."""
    durations = sorted(seconds for seconds, _ in found)
    stages: dict[str, list[float]] = {}
    for _, evaluation in found:
        for stage, seconds in evaluation.durations_s.items():
            stages.setdefault(stage, []).append(seconds)
    timings = [evaluation.timing for _, evaluation in found if evaluation.timing]
    speedups = [timing.speedup for timing in timings]
    scatter = statistics.stdev(speedups) / statistics.mean(speedups) if len(speedups) > 1 else None
    apart_us = [1e3 * (timing.judge_ms - timing.candidate_ms) for timing in timings if timing.judge_ms]
    apart = (min(apart_us), statistics.median(apart_us), max(apart_us)) if apart_us else ()
    alone_s = sum(sum(stages.get(stage, ())) for stage in ALONE)
    return {
        "evaluations": len(found),
        "clean": sum(evaluation.honest_and_correct for _, evaluation in found),
        "timed_calls": round(sum(timing.runs for timing in timings) / len(found)),
        "a_minute": round(60 * len(found) / elapsed_s, 1),
        "p50_s": round(statistics.median(durations), 3),
        "p95_s": round(durations[min(int(0.95 * len(durations)), len(durations) - 1)], 3),
        "stages_s": {stage: round(statistics.median(seconds), 3) for stage, seconds in stages.items()},
        "timed_share": round(alone_s / elapsed_s, 3),
        "speedup": round(statistics.median(speedups), 4) if speedups else None,
        "speedup_cv_percent": round(100 * scatter, 2) if scatter is not None else None,
        "clock_minus_claim_us": [round(each, 1) for each in apart],
    }


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--count", default=200, show_default=True, help="Kernels to judge.")
@click.option("--seconds", default=math.inf, help="Begin no further evaluation after this.")
@click.option("--budget", default=1.0, show_default=True, help="Seconds that the timing stage aims to stay within.")
@click.option("--lanes", default=0, show_default=True, help="Evaluations at a time; 0 is what a worker would choose.")
@click.option("--checks", is_flag=True, help="Correctness and integrity alone.")
def main(device: str, count: int, seconds: float, budget: float, lanes: int, checks: bool) -> None:
    """Judge kernels in all lanes until there are no more."""
    stages = (Stage.CORRECTNESS, Stage.INTEGRITY) if checks else tuple(Stage)
    benches = open_lanes(device, lanes)
    found: list[tuple[float, Evaluation]] = []

    def judge(bench: Bench, number: int) -> bool:
        start = time.perf_counter()
        if start > ends_at:
            return False
        evaluation = bench.judge(builtin("softmax"), variant(number), timing_budget_s=budget, stages=stages)
        if not evaluation.honest_and_correct:
            click.echo(f"kernel {number} is not clean: {described(evaluation)}", err=True)
        found.append((time.perf_counter() - start, evaluation))
        return True

    ends_at = math.inf
    spread(benches, range(count, count + len(benches)), judge)  # the first one starts the judge
    found.clear()
    started = time.perf_counter()
    ends_at = started + seconds
    with watched(device) as shares:
        spread(benches, range(count), judge)
        elapsed_s = time.perf_counter() - started
    figures = summary(found, elapsed_s) | {"busy_share": busy_share(shares)}
    for bench in benches:
        bench.close()
    click.echo(json.dumps({"benchmark": "evaluate_throughput", "device": device, "lanes": len(benches)} | figures))


if __name__ == "__main__":
    main()
