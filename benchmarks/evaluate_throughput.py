"""Evaluations a minute on one device, each of another kernel, with everything on and a cold compile.

`PYTHONPATH=. python benchmarks/evaluate_throughput.py --device cuda:0` judges variants of the example softmax
(4096x8192 in fp32 on a GPU): 5 correctness trials, about 100 timed calls, profile and integrity, two fresh processes
for each kernel, in as many lanes as a worker would have. It prints one JSON line: evaluations a minute, median and 95th
percentile of the seconds of one, seconds by stage, the share of the time in which the device was timed or profiled, and
how far the speedups scatter.
"""

import json
import math
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from drkernel_q.evaluation import Evaluation
from tests.judging import EXAMPLES, Bench, builtin
from workers.device import find_device, lanes_of

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


class Lane(threading.Thread):
    """One evaluator, which takes kernels as long as there are any."""

    def __init__(self, device: str, lanes: int, budget_s: float) -> None:
        """Start its zygote."""
        super().__init__()
        self.bench = Bench(device, memory_bytes=3 * 2**30 if device == "cpu" else 32 * 2**30, lanes=lanes)
        self.budget_s = budget_s
        self.found: list[tuple[float, Evaluation]] = []
        """Seconds and facts of each evaluation."""
        self.numbers: Iterator[int] = iter(())
        self.ends_at = math.inf

    def get_ready(self, number: int) -> None:
        """Judge a kernel that does not count: the first one starts the judge."""
        self.bench.evaluator.wait_ready()
        self.bench.judge(builtin("softmax"), variant(number), timing_budget_s=self.budget_s)

    def run(self) -> None:
        """Judge one kernel after the other."""
        for number in self.numbers:
            if time.perf_counter() > self.ends_at:
                return
            start = time.perf_counter()
            evaluation = self.bench.judge(builtin("softmax"), variant(number), timing_budget_s=self.budget_s)
            self.found.append((time.perf_counter() - start, evaluation))


def summary(found: list[tuple[float, Evaluation]], elapsed_s: float) -> dict[str, Any]:
    """Add everything up."""
    durations = sorted(seconds for seconds, _ in found)
    stages: dict[str, list[float]] = {}
    for _, evaluation in found:
        for stage, seconds in evaluation.durations_s.items():
            stages.setdefault(stage, []).append(seconds)
    timings = [evaluation.timing for _, evaluation in found if evaluation.timing]
    speedups = [timing.speedup for timing in timings]
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
        "speedup": round(statistics.median(speedups), 4),
        "speedup_cv_percent": round(100 * statistics.stdev(speedups) / statistics.mean(speedups), 2),
    }


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--count", default=200, show_default=True, help="Kernels to judge.")
@click.option("--seconds", default=math.inf, help="Begin no further evaluation after this.")
@click.option("--budget", default=1.0, show_default=True, help="Seconds that the timing stage aims to stay within.")
@click.option("--lanes", default=0, show_default=True, help="Evaluations at a time; 0 is what a worker would choose.")
def main(device: str, count: int, seconds: float, budget: float, lanes: int) -> None:
    """Judge kernels in all lanes until there are no more."""
    lanes = lanes_of(find_device(device), lanes)
    workers = [Lane(device, lanes, budget) for _ in range(lanes)]
    ready = [threading.Thread(target=worker.get_ready, args=(count + number,)) for number, worker in enumerate(workers)]
    for thread in ready:
        thread.start()
    for thread in ready:
        thread.join()
    numbers = iter(range(count))
    started = time.perf_counter()
    for worker in workers:
        worker.numbers, worker.ends_at = numbers, started + seconds
        worker.start()
    for worker in workers:
        worker.join()
    found = summary([each for worker in workers for each in worker.found], time.perf_counter() - started)
    for worker in workers:
        worker.bench.close()
    click.echo(json.dumps({"benchmark": "evaluate_throughput", "device": device, "lanes": lanes} | found))


if __name__ == "__main__":
    main()
