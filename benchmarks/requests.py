"""Where the seconds of an evaluation go: by stage, and within it by the requests that candidate processes answer.

`PYTHONPATH=. python benchmarks/requests.py --device cuda:0` judges the example softmax in this process, with candidate
processes of their own, and prints a table for the evaluation that took the median time: for each stage its seconds,
and for each kind of request how many there were, what they took in all, and the median of one. What is left of a stage
is the judge's own work. A last line has the same as JSON.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import click
import torch

from drkernel_q.environment import Environment
from drkernel_q.evaluation import EvaluationRequest, Protocol
from drkernel_q.kernel import Kernel
from tests.judging import EXAMPLES, Bench, builtin
from workers.isolation.wire import Channel
from workers.judging.judge import Judge
from workers.judging.remote import RemoteCandidate
from workers.judging.spare import Spares

Rows = dict[str, dict[str, list[float]]]


class Notes:
    """Takes the place of the channel that hears of stages, and notes what each request in them took."""

    def __init__(self) -> None:
        """Know of no stage yet."""
        self.stage = "start"
        self.rows: Rows = defaultdict(lambda: defaultdict(list))

    def send(self, message: dict[str, Any]) -> None:
        """Hear of a stage."""
        self.stage = message["stage"]


class Recorded(RemoteCandidate):
    """A candidate process whose requests are noted."""

    notes: Notes

    def ask(
        self, operation: str, message: dict[str, Any], fds: Sequence[int] = (), *, deadline_s: float
    ) -> dict[str, Any]:
        """Do as the class above does, and note how long that takes."""
        start = time.perf_counter()
        try:
            return super().ask(operation, message, fds, deadline_s=deadline_s)
        finally:
            self.notes.rows[self.notes.stage][operation].append(time.perf_counter() - start)


class RecordedSpares(Spares):
    """Spares of that kind."""

    def make(self) -> RemoteCandidate:
        """Fork one."""
        return Recorded(self.zygote, self.memory_bytes)


def evaluate(request: EvaluationRequest, environment: Environment, spares: Spares) -> tuple[dict[str, float], Rows]:
    """Judge once; return the seconds of the stages, and those of the requests in each."""
    Recorded.notes = notes = Notes()
    evaluation = Judge(request, environment, spares, cast("Channel", notes)).evaluate()
    if not evaluation.honest_and_correct:
        raise click.ClickException(f"{evaluation.outcome}: {evaluation.error or evaluation.observations}")
    return evaluation.durations_s, notes.rows


def show(durations_s: dict[str, float], rows: Rows) -> None:
    """Print the table of one evaluation."""
    click.echo(f"{'stage':12} {'request':10} {'times':>6} {'in all, ms':>11} {'median, ms':>11}")
    for stage, seconds in durations_s.items():
        click.echo(f"{stage:12} {'':10} {'':6} {seconds * 1e3:11.1f}")
        for operation, each in rows.get(stage, {}).items():
            median_ms = statistics.median(each) * 1e3
            click.echo(f"{'':12} {operation:10} {len(each):6} {sum(each) * 1e3:11.1f} {median_ms:11.2f}")


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
@click.option("--repeats", default=5, show_default=True, help="Evaluations, after one that does not count.")
def main(device: str, repeats: int) -> None:
    """Judge a few times and show the median one."""
    torch.set_num_threads(1)
    bench = Bench(device)
    bench.evaluator.wait_ready()
    family = bench.evaluator.family
    assert family._zygote is not None
    spares = RecordedSpares(family._zygote, family.memory_bytes)
    request = EvaluationRequest(
        id="0" * 32,
        problem=builtin("softmax"),
        kernel=Kernel(source=(EXAMPLES / "softmax.py").read_text()),
        protocol=Protocol(timing_budget_s=1.0),
        submitted_at="2026-01-01T00:00:00Z",
    )
    runs = [evaluate(request, bench.evaluator.environment(), spares) for _ in range(repeats + 1)][1:]
    bench.close()
    runs.sort(key=lambda run: run[0]["total"])
    durations_s, rows = runs[len(runs) // 2]
    show(durations_s, rows)
    click.echo(json.dumps({"benchmark": "requests", "device": device, "stages_s": durations_s, "requests_s": rows}))


if __name__ == "__main__":
    main()
