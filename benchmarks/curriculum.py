"""The curriculum: whether the judge finds of every generated solution what its quality says, through the real queue.

`PYTHONPATH=. python benchmarks/curriculum.py --problems 24 --device cpu` judges all solutions of the first problems of
a seed, in a store of its own unless DRKQ_STORE_URL names one. It prints a line for each that was not expected, a table
of qualities and outcomes, and one JSON line. The exit code is 1 if anything was not expected.
"""

import asyncio
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.through_queue import replies
from drkernel_q.cli.output import emit_table, say
from drkernel_q.curriculum import Exercise, Solution, generate
from drkernel_q.evaluation import EvaluationRequest, Protocol, Reply
from drkernel_q.request import Priority
from drkernel_q.settings import Settings, load_settings
from drkernel_q.store import Store

#: Evaluations under way at once.
IN_FLIGHT = 64


class Found(NamedTuple):
    """A solution, and what the judge says of it."""

    exercise: Exercise
    solution: Solution
    reply: Reply

    @property
    def expected(self) -> bool:
        """Whether it is what the quality says."""
        return self.reply.evaluation is not None and self.solution.quality.agrees(self.reply.evaluation)

    @property
    def shown(self) -> str:
        """Outcome and integrity, or the failure."""
        if self.reply.evaluation is None:
            return f"failure: {self.reply.failure and self.reply.failure.message}"
        return f"{self.reply.evaluation.outcome.value}, {self.reply.evaluation.integrity.value}"


async def judged(
    chosen: Sequence[tuple[Exercise, Solution]], settings: Settings, store: Store, *, run: str, protocol: Protocol
) -> AsyncIterator[Found]:
    """Judge solutions on the device of the settings, and yield what is found as it comes; the store remembers it."""
    asked = {}
    for exercise, solution in chosen:
        name = f"{run}\0{exercise.problem.hash}\0{solution.kernel.hash}\0{settings.device}"
        request = EvaluationRequest(
            id=hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
            problem=exercise.problem,
            kernel=solution.kernel,
            protocol=protocol,
            priority=Priority.BACKFILL,
            run=run,
            submitted_at=datetime.now(UTC).isoformat(),
        )
        asked[request.id] = (request, exercise, solution)
    requests = [request for request, _, _ in asked.values()]
    async for reply in replies(requests, settings, store, in_flight=IN_FLIGHT):
        _, exercise, solution = asked[reply.id]
        yield Found(exercise, solution, reply)


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True, help="Seed of the set.")
@click.option("--problems", default=24, show_default=True, help="Problems, from the first.")
@click.option("--device", default="cpu", show_default=True, help="`cpu` or `cuda:0`.")
def main(seed: int, problems: int, device: str) -> None:
    """Judge, and print what was found."""
    chosen = [(exercise, each) for exercise in generate(seed, problems) for each in exercise.solutions]
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(device=device)
        if settings.store_url is None:
            settings = load_settings(device=device, data_dir=Path(folder))
        raise SystemExit(asyncio.run(_report(chosen, settings)))


async def _report(chosen: Sequence[tuple[Exercise, Solution]], settings: Settings) -> int:
    table: Counter[tuple[str, str]] = Counter()
    strange = 0
    with Store.open(settings.store) as store:
        store.upgrade()
        async for found in judged(chosen, settings, store, run="curriculum", protocol=Protocol()):
            table[found.solution.quality.value, found.shown] += 1
            if not found.expected:
                strange += 1
                say(f"{found.exercise.problem.name} {found.solution.kernel.name}: {found.shown}")
                evidence = found.reply.evaluation.evidence if found.reply.evaluation else ()
                say("".join(f"  {item.code}: {item.detail}\n" for item in evidence).rstrip())
    emit_table(("quality", "found", "solutions"), [(*key, count) for key, count in sorted(table.items())])
    line = {"benchmark": "curriculum", "device": settings.device, "solutions": len(chosen), "unexpected": strange}
    click.echo(json.dumps(line))
    return 1 if strange else 0


if __name__ == "__main__":
    main()
