"""What a request to a candidate costs on the host: torch's own softmax on small inputs, where nothing else takes time.

`PYTHONPATH=. python benchmarks/call_overhead.py` makes many calls, one after the other, on the `cpu` device and
prints one JSON line: for each kind the shortest and the quickest tenth, milliseconds. Whatever else the machine does
makes calls longer, so the shortest are compared between versions, in turns on one machine.
"""

import json
import statistics
import time
from collections.abc import Callable

import click
import torch

from benchmarks.stopwatch import WRAPPER
from tests.judging import Bench, builtin
from workers.comparison.reference import Reference
from workers.judging import trial
from workers.judging.remote import RemoteCandidate
from workers.judging.session import Session
from workers.judging.side import CandidateSide


def times_ms(call: Callable[[], object], count: int) -> dict[str, float]:
    """Call again and again; return the shortest time and the limit of the quickest tenth."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - start))
    return {"shortest": round(min(taken), 3), "tenth": round(statistics.quantiles(taken, n=10)[0], 3)}


@click.command(help=__doc__)
@click.option("--count", default=400, show_default=True, help="Calls of each kind.")
def main(count: int) -> None:
    """Make the calls."""
    torch.set_num_threads(1)
    bench = Bench("cpu")
    bench.evaluator.wait_ready()
    zygote = bench.evaluator.family._zygote
    assert zygote is not None
    reference = Reference(builtin("softmax").small(), "cpu", train=False)
    session = Session(lambda: RemoteCandidate(zygote, 2**31), "cpu", 20.0, lambda: 600.0)
    session.remote.wait_ready()
    session.load(WRAPPER)
    trial.build(session, reference)
    inputs = reference.inputs(1)
    expected = reference.expected(inputs)
    found = {"call": times_ms(lambda: session.call(inputs, expected, train=False), count)}
    found["adopt"] = times_ms(lambda: session.adopt(reference), count)
    found["timed"] = times_ms(CandidateSide(session, reference).timed, count)
    session.close()
    bench.close()
    click.echo(json.dumps({"benchmark": "call_overhead", "calls": count, "ms": found}))


if __name__ == "__main__":
    main()
