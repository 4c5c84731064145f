"""Judge the whole adversarial suite on one device and print a confusion table.

`python -m tests.adversarial --device cuda:0 --jobs 12` judges in that many lanes; on the cpu device evaluators work
side by side. It ends with 1 if an attack was accepted, or an honest kernel not.
"""

import json
import math
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click

from drkernel_q.evaluation import Evaluation, Failure
from drkernel_q.reward import reward
from tests.adversarial.cases import Case, load_cases
from tests.judging import Bench

#: What a case is called in the table, by what must come of it.
EXPECTED = {"caught": "attack", "unpaid": "unpaid", "clean": "honest"}


class Judged(NamedTuple):
    """One case and what the judge made of it."""

    case: Case
    result: Evaluation | Failure
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the judge got it right."""
        return self.case.holds(self.result)

    @property
    def row(self) -> dict[str, Any]:
        """What is written down about it."""
        row: dict[str, Any] = {"name": self.case.name, "code": self.case.code, "right": self.right}
        row |= {"expect": self.case.expect, "seconds": round(self.seconds, 2)}
        if isinstance(self.result, Failure):
            return row | {"outcome": None, "integrity": None, "codes": [], "error": self.result.message}
        return row | {
            "outcome": self.result.outcome.value,
            "integrity": self.result.integrity.value,
            "codes": [item.code for item in self.result.evidence],
            "details": [item.detail for item in self.result.evidence],
            "reward": round(reward(self.result), 4),
            "speedup": self.result.speedup,
            "profile_ratio": self.result.profile_ratio,
            "error": self.result.error,
            "durations_s": self.result.durations_s,
        }


def judge_all(
    cases: list[Case], device: str, jobs: int, repeat: int, told: Callable[[Judged], None], ends_at: float
) -> list[Judged]:
    """Judge every case `repeat` times with `jobs` evaluators, those that are begun before `ends_at` (monotonic clock).

    `told` hears of each as it is done.
    """
    benches: queue.SimpleQueue[Bench] = queue.SimpleQueue()
    memory_bytes = (16 if device.startswith("cuda") else 3) * 2**30  # compilers of CUDA C++ need theirs
    lanes = jobs if device.startswith("cuda") else 1  # which take turns where a device is timed
    all_benches = [Bench(device, memory_bytes=memory_bytes, lanes=lanes) for _ in range(jobs)]
    for bench in all_benches:
        benches.put(bench)

    def judge(case: Case) -> Judged | None:
        bench = benches.get()
        try:
            if time.monotonic() > ends_at:
                return None
            start = time.perf_counter()
            result = bench.result(case.problem, case.source, **case.options)
            judged = Judged(case, result, time.perf_counter() - start)
        finally:
            benches.put(bench)
        told(judged)
        return judged

    try:
        with ThreadPoolExecutor(jobs) as pool:
            return [judged for judged in pool.map(judge, cases * repeat) if judged is not None]
    finally:
        for bench in all_benches:
            bench.close()


def describe(judged: Judged) -> str:
    """Say in one line what came of a case."""
    row = judged.row
    codes = ",".join(row["codes"])
    error = (row["error"] or "").strip().splitlines()
    text = f"{row['name']:42} {row['expect']:7} {row['outcome']}/{row['integrity']} [{codes}] {judged.seconds:.1f} s"
    return text + (f"  {error[-1][:160]}" if error else "")


def table(judged: list[Judged]) -> str:
    """Return the confusion table: what was expected against what was said."""
    counts: Counter[tuple[str, str]] = Counter()
    for one in judged:
        expected = EXPECTED[one.case.expect]
        if isinstance(one.result, Failure):
            said = "no verdict"
        elif one.result.outcome.value != "correct":
            said = "not correct"
        else:
            said = one.result.integrity.value
        counts[expected, said] += 1
    columns = ["clean", "suspicious", "rejected", "unknown", "not correct", "no verdict"]
    lines = [" " * 10 + "".join(f"{column:>13}" for column in columns)]
    lines += [
        f"{expected:10}" + "".join(f"{counts[expected, column]:13}" for column in columns)
        for expected in EXPECTED.values()
    ]
    results = [(one.case, one.result) for one in judged if isinstance(one.result, Evaluation)]
    paid = sum(reward(result) > case.most_reward for case, result in results)
    punished = sum(one.case.clean and not one.right for one in judged)
    return "\n".join(
        [*lines, f"attacks that earned more than they must: {paid}", f"honest kernels that are not clean: {punished}"]
    )


def stages(judged: list[Judged]) -> str:
    """Return the median seconds of each stage over the honest evaluations, if there are any."""
    taken: dict[str, list[float]] = {}
    for one in judged:
        if one.case.clean and isinstance(one.result, Evaluation):
            for stage, seconds in one.result.durations_s.items():
                taken.setdefault(stage, []).append(seconds)
    parts = [f"{stage} {median(seconds):.2f}" for stage, seconds in taken.items()]
    return f"\nmedian seconds of an honest evaluation: {', '.join(parts)}" if parts else ""


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--jobs", default=1, show_default=True, help="Evaluators that work side by side.")
@click.option("--repeat", default=1, show_default=True, help="How often each case is judged.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="File for one JSON line a case, as it is done.")
@click.option("--only", type=click.Choice(["attack", "honest"]), help="Only cases of one kind.")
@click.option("--seconds", default=math.inf, help="Begin no further case after this.")
@click.option("--ci", is_flag=True, help="Only the cases that every run of the tests judges.")
@click.argument("names", nargs=-1)
def main(
    device: str,
    jobs: int,
    repeat: int,
    report: Path | None,
    only: str | None,
    seconds: float,
    ci: bool,
    names: tuple[str, ...],
) -> None:
    """Judge all cases, or those whose name fits one of NAMES (`b0*`); those that take long to build come last."""
    cases = sorted(load_cases(device.partition(":")[0]), key=lambda case: case.build_s)
    if only:
        cases = [case for case in cases if case.clean == (only == "honest")]
    if names:
        cases = [case for case in cases if any(fnmatch(case.name, name) for name in names)]
    if ci:
        cases = [case for case in cases if case.ci]

    def told(judged: Judged) -> None:
        click.echo(f"{'ok  ' if judged.right else 'MISS'} {describe(judged)}", err=True)
        if report is not None:
            with report.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(judged.row) + "\n")

    judged = judge_all(cases, device, jobs, repeat, told, time.monotonic() + seconds)
    left_out = len(cases) * repeat - len(judged)
    click.echo(
        table(judged)
        + stages(judged)
        + (f"\n{left_out} evaluations were left out for want of time" if left_out else "")
    )
    missed = [one for one in judged if not one.right]
    for one in missed:
        pending = f"  (pending: {one.case.pending})" if one.case.pending else ""
        click.echo(f"MISS {describe(one)}{pending}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
