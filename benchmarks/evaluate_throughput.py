"""Evaluations a minute of one worker on one device, each of another kernel, with everything on and a cold compile.

`PYTHONPATH=. python benchmarks/evaluate_throughput.py --device cuda:0` judges variants of the example softmax
(4096x8192 in fp32 on a GPU): 5 correctness trials, about 100 timed calls, profile and integrity, two fresh processes
for each kernel. It prints one JSON line: evaluations a minute, median and 95th percentile of the seconds of one, and
seconds by stage.
"""

import json
import math
import statistics
import time

import click

from tests.judging import EXAMPLES, Bench, builtin

#: Warps a program of the variants: every kernel has another name besides, so that none finds another's in a cache.
WARPS = (4, 8, 16)


def variant(number: int) -> str:
    """Return the example under another name, with other warps."""
    source = (EXAMPLES / "softmax.py").read_text()
    return source.replace("softmax_kernel", f"softmax_kernel_{number}").replace(
        "num_warps=8", f"num_warps={WARPS[number % len(WARPS)]}"
    )


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--count", default=200, show_default=True, help="Kernels to judge.")
@click.option("--seconds", default=math.inf, help="Begin no further evaluation after this.")
@click.option("--budget", default=1.0, show_default=True, help="Seconds that the timing stage aims to stay within.")
def main(device: str, count: int, seconds: float, budget: float) -> None:
    """Judge one kernel after the other."""
    bench = Bench(device, memory_bytes=3 * 2**30 if device == "cpu" else 32 * 2**30)
    bench.evaluator.wait_ready()
    problem = builtin("softmax")
    bench.judge(problem, variant(count))  # the first one starts the judge
    durations: list[float] = []
    stages: dict[str, list[float]] = {}
    clean = runs = 0
    started = time.perf_counter()
    for number in range(count):
        if time.perf_counter() - started > seconds:
            break
        start = time.perf_counter()
        evaluation = bench.judge(problem, variant(number), timing_budget_s=budget)
        durations.append(time.perf_counter() - start)
        clean += evaluation.honest_and_correct
        runs += evaluation.timing.runs if evaluation.timing else 0
        for stage, duration in evaluation.durations_s.items():
            stages.setdefault(stage, []).append(duration)
    elapsed = time.perf_counter() - started
    bench.close()
    durations.sort()
    click.echo(
        json.dumps(
            {
                "benchmark": "evaluate_throughput",
                "device": device,
                "evaluations": len(durations),
                "clean": clean,
                "timed_calls": round(runs / len(durations)),
                "a_minute": round(60 * len(durations) / elapsed, 1),
                "p50_s": round(statistics.median(durations), 3),
                "p95_s": round(durations[min(int(0.95 * len(durations)), len(durations) - 1)], 3),
                "stages_s": {stage: round(statistics.median(values), 3) for stage, values in stages.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
