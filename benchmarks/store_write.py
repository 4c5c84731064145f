"""The store: evaluations a second that a persister writes, and how long each named query takes in a store that is full.

`PYTHONPATH=. python benchmarks/store_write.py --turns 100000,1000000` works on SQLite in a file and on a PostgreSQL of
its own, both in a folder that is removed (`--folder` says on which disk). It prints one JSON line for each database and
way of writing, and one for each database and number of turns; then tables. A full store has a run of 16 trajectories a
problem with 3 turns each, every turn with its own kernel and evaluation.
"""

import json
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Connection, insert, text

from drkernel_q.cli.output import emit_table
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Protocol, Reply
from drkernel_q.problem import Problem
from drkernel_q.store import Store, facts
from drkernel_q.store.query import QUERIES, ask
from drkernel_q.store.table import (
    EvaluationRow,
    KernelRow,
    MessageRow,
    ProfileKernelRow,
    RunRow,
    TrajectoryRow,
    TurnRow,
    table,
)
from drkernel_q.store.write import add_problems
from tests.need import postgres_program
from tests.services import Postgres
from tests.values import a_reply, a_request, an_evaluation, observed

#: Replies that the persister writes in one transaction, and one at a time.
BATCHES = (200, 1)
RUN = "run"
TURNS, ROLLOUTS = 3, 16
#: Rows that are inserted with one statement.
CHUNK = 2_000
#: Tokens of a prompt and of an answer.
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 200
SOURCE = "import triton\n" + "# a kernel of ordinary length\n" * 60
MESSAGE = "Here is a kernel.\n" * 20


def samples() -> list[Evaluation]:
    """Make evaluations as they come: of five, three correct, one wrong, one rejected."""
    full: dict[str, Any] = {"protocol": Protocol(), "observations": observed()}
    correct = [an_evaluation(speedup=speed, profile_ratio=0.9, rules_version="1", **full) for speed in (0.8, 1.3, 2.1)]
    return [
        *correct,
        an_evaluation("wrong_value", "unknown", error="1 of 4096 values is wrong\nmore", rules_version="1", **full),
        an_evaluation("correct", "rejected", speedup=9.0, profile_ratio=0.1, rules_version="1", **full),
    ]


def pairs(count: int) -> list[tuple[EvaluationRequest, Reply]]:
    """Make requests and their replies, each of another kernel."""
    some = samples()
    requests = [a_request(f"{SOURCE}# {uuid.uuid4().hex}", run="write") for _ in range(count)]
    return [(request, a_reply(request, some[number % len(some)])) for number, request in enumerate(requests)]


def writing(store: Store, batch: int, seconds: float) -> float:
    """Write as the persister does; return evaluations a second."""
    written, elapsed_s = 0, 0.0
    while elapsed_s < seconds:
        ready = pairs(batch)
        start = time.perf_counter()
        store.record_all([(request, reply) for request, reply in ready])
        elapsed_s += time.perf_counter() - start
        written += batch
    return written / elapsed_s


class Filler:
    """Fills a store by its tables, which is some hundred times faster than by its functions."""

    def __init__(self, store: Store) -> None:
        """Fill an empty store, or go on with one that this has begun."""
        self.store = store
        self.turns = 0
        self.templates = [facts.columns(sample) for sample in samples()]
        with store.writing() as connection:
            facts.add_environments(connection, [sample.environment for sample in samples()])

    def fill(self, turns: int) -> None:
        """Add trajectories until there are so many turns."""
        while self.turns < turns:
            problems = min(CHUNK // (TURNS * ROLLOUTS), (turns - self.turns) // (TURNS * ROLLOUTS) + 1)
            with self.store.writing() as connection:
                self._add(connection, problems)

    def _add(self, connection: Connection, count: int) -> None:
        first = self.turns // (TURNS * ROLLOUTS)
        problems = [Problem(name=f"p{first + n}", source=f"class Model: {first + n}") for n in range(count)]
        add_problems(connection, problems)
        if first == 0:
            connection.execute(insert(table(RunRow)), {"id": 1, "name": RUN, "kind": "train", "created_at": _at(0)})
        rows: dict[type, list[dict[str, Any]]] = {
            row: [] for row in (KernelRow, TrajectoryRow, MessageRow, TurnRow, EvaluationRow, ProfileKernelRow)
        }
        for problem in problems:
            for rollout in range(ROLLOUTS):
                self._add_trajectory(rows, problem, rollout)
        for row, values in rows.items():
            connection.execute(insert(table(row)), values)

    def _add_trajectory(self, rows: dict[type, list[dict[str, Any]]], problem: Problem, rollout: int) -> None:
        trajectory = self.turns // TURNS + 1
        rows[TrajectoryRow].append({"id": trajectory, "run_id": 1, "problem_hash": problem.hash, "number": rollout + 1})
        parent = None
        for number in range(1, TURNS + 1):
            self.turns += 1
            turn, kernel = self.turns, f"b2:{self.turns:032x}"
            for role in ("user", "assistant"):
                message = {"hash": f"{role}{turn}", "parent_hash": parent, "role": role, "content": MESSAGE}
                rows[MessageRow].append(message)
                parent = message["hash"]
            rows[KernelRow].append({"hash": kernel, "name": "k", "source": SOURCE, "source_bytes": len(SOURCE)})
            rows[TurnRow].append(
                {
                    "id": turn,
                    "trajectory_id": trajectory,
                    "number": number,
                    "prompt_hash": f"user{turn}",
                    "completion_hash": f"assistant{turn}",
                    "kernel_hash": kernel,
                    "kernel_name": "k",
                    "prompt_ids": tuple(range(PROMPT_TOKENS)),
                    "output_ids": tuple(range(OUTPUT_TOKENS)),
                    "logprobs": (-0.5,) * OUTPUT_TOKENS,
                }
            )
            self._add_evaluation(rows, problem, kernel, turn)

    def _add_evaluation(self, rows: dict[type, list[dict[str, Any]]], problem: Problem, kernel: str, turn: int) -> None:
        about = {
            "id": turn,
            "request_id": f"{turn:032x}",
            "problem_hash": problem.hash,
            "kernel_hash": kernel,
            "kernel_name": "k",
            "run_id": 1,
            "turn_id": turn,
            "content_key": f"b2:{turn // 2:032x}",
            "worker": "w",
            "attempt": 1,
            "submitted_at": _at(turn),
            "finished_at": _at(turn + 5),
            "document_hash": f"b2:{turn:032x}",
        }
        rows[EvaluationRow].append(self.templates[turn % len(self.templates)] | about)
        rows[ProfileKernelRow] += [
            {"evaluation_id": turn, "name": name, "device_us": 9.0, "launches": 1, "origin": origin}
            for name, origin in (("own", "candidate"), (f"at::{turn % 50}", "torch"))
        ]


def _at(second: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def query_times(store: Store) -> dict[str, float]:
    """Ask each named query three times; return the median of its seconds, and of the lookups that a client makes."""
    with store.writing() as connection:
        connection.execute(text("ANALYZE"))
    times = {name: _median_s(lambda name=name: _ask(store, name)) for name in QUERIES}  # type: ignore[misc]
    times["(a reply by its id)"] = _median_s(lambda: store.find(f"{9:032x}"))
    since = datetime(2026, 1, 1, tzinfo=UTC)
    times["(facts by content)"] = _median_s(lambda: store.find_content([f"b2:{4:032x}"], since))
    return times


def _ask(store: Store, name: str) -> None:
    given = dict.fromkeys({"run", "other"} & set(QUERIES[name].parameters), RUN)
    with ask(store, name, given) as answer:
        for _ in answer.rows:
            pass


def _median_s(work: Any) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@contextmanager
def stores(names: list[str], folder: Path) -> Iterator[dict[str, Store]]:
    """Open an empty store in each kind of database."""
    opened: dict[str, Store] = {}
    server: Postgres | None = None
    try:
        for name in names:
            url = f"sqlite:///{folder / 'drkq.sqlite'}"
            if name == "postgres":
                (folder / "postgres").mkdir()
                folder.chmod(0o755)
                server = Postgres(folder / "postgres")
                url = server.url(server.create())
            opened[name] = Store.open(url)
            opened[name].upgrade()
        yield opened
    finally:
        for store in opened.values():
            store.close()
        if server is not None:
            server.stop()


@click.command(help=__doc__)
@click.option("--databases", default="sqlite,postgres", show_default=True, help="Which, by comma.")
@click.option("--turns", default="100000", show_default=True, help="Turns of a full store, ascending, by comma.")
@click.option("--seconds", default=10.0, show_default=True, help="How long each way of writing is tried.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Folder for the databases' own folder.")
def main(databases: str, turns: str, seconds: float, folder: Path | None) -> None:
    """Measure writing, then fill the stores and ask."""
    names = databases.split(",")
    if "postgres" in names and postgres_program("initdb") is None:
        raise click.ClickException("PostgreSQL is not installed.")
    own = Path(tempfile.mkdtemp(prefix="drkq-stores-", dir=folder))
    try:
        with stores(names, own) as opened:
            rates = [
                {"benchmark": "store_write", "database": name, "batch": batch, "evaluations_per_s": round(rate, 1)}
                for name, store in opened.items()
                for batch in BATCHES
                if (rate := writing(store, batch, seconds))
            ]
            for row in rates:
                click.echo(json.dumps(row))
            emit_table(("database", "batch", "evaluations a second"), [tuple(row.values())[1:] for row in rates])
        for name in names:
            shutil.rmtree(own)
            own.mkdir()
            with stores([name], own) as opened:
                _fill_and_ask(name, opened[name], [int(number) for number in turns.split(",")])
    finally:
        shutil.rmtree(own)


def _fill_and_ask(name: str, store: Store, sizes: list[int]) -> None:
    filler = Filler(store)
    for size in sizes:
        start = time.perf_counter()
        filler.fill(size)
        filled_s = time.perf_counter() - start
        times = query_times(store)
        facts_of = {"database": name, "turns": filler.turns}
        sized = {"filled_s": round(filled_s, 1), "size_mb": round(store.status().size_bytes / 1e6)}
        queries = {query: round(1000 * seconds, 2) for query, seconds in times.items()}
        click.echo(json.dumps({"benchmark": "store_query"} | facts_of | sized | {"queries_ms": queries}))
        emit_table(("query", f"{name}, {filler.turns} turns, ms"), list(queries.items()))


if __name__ == "__main__":
    main()
