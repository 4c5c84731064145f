"""What the store takes: evaluations a second into SQLite and PostgreSQL, and the time of named queries over many turns.

`PYTHONPATH=. python benchmarks/store_write.py --turns 100000` records evaluations as the persister does (batches of
200, one transaction each), then stores trajectories of three turns and copies them, in SQL, until there are so many
turns, and asks every named query, about one of ten runs where it can be asked so, twice. One JSON line for each
database. PostgreSQL runs without fsync.
"""

import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
from sqlalchemy import text

from drkernel_q.kernel import Kernel
from drkernel_q.persist import BATCH
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from drkernel_q.store.query import QUERIES, ask
from drkernel_q.store.table import Row
from drkernel_q.trajectory import Message, Trajectory, Turn
from tests.services import Postgres
from tests.values import a_reply, a_request, an_evaluation

PROBLEMS = [Problem(name=f"problem-{number}", source=f"class Model: '''{number}'''") for number in range(100)]
TURNS = 3
#: Turns that are stored one by one, before they are copied.
FIRST = 3000
#: Tables of what belongs to one evaluation.
DETAILS = ("evidence", "profile_kernels")
#: Names of runs, of which each query that must be told one is told the first.
RUNS = [f"run-{number}" for number in range(10)]
ARGUMENTS: dict[str, dict[str, str]] = {
    name: {"run": RUNS[0], "other": RUNS[1]} if "other" in query.parameters else {"run": RUNS[0]}
    for name, query in QUERIES.items()
    if "run" in query.parameters
} | {name: {} for name, query in QUERIES.items() if "run" not in query.parameters}


def trajectories(count: int) -> Iterator[Trajectory]:
    """Yield trajectories whose turns are all different."""
    for number in range(count):
        problem = PROBLEMS[number % len(PROBLEMS)]
        yield Trajectory(problem_hash=problem.hash, turns=tuple(_turn(number, turn) for turn in range(1, TURNS + 1)))


def _turn(number: int, turn: int) -> Turn:
    completion = f"import triton  # {number} {turn}\n" + "x = tl.load(pointer + offsets, mask=mask)\n" * 30
    correct = random.random() < 0.6
    speed = random.lognormvariate(0, 0.5)
    return Turn(
        number=turn,
        prompt=(Message(role="user", content=f"Make it faster. {number}"),),
        completion=completion,
        kernel=Kernel(source=completion),
        evaluation=an_evaluation(speedup=speed, profile_ratio=min(speed, 1.0))
        if correct
        else an_evaluation("wrong_value"),
        finish_reason="stop",
        policy_version=number // 256,
    )


def measure(url: str, kind: str, evaluations: int, turns: int) -> dict[str, object]:
    """Fill a new store and ask it."""
    store = Store.open(url)
    store.upgrade()
    pairs = []
    for number in range(evaluations):
        request = a_request(f"kernel {number}\n" * 50, problem=PROBLEMS[number % len(PROBLEMS)])
        pairs.append((request, a_reply(request, an_evaluation(speedup=1.0 + number / evaluations))))
    start = time.perf_counter()
    for first in range(0, evaluations, BATCH):
        store.record_all(pairs[first : first + BATCH])
    written_s = time.perf_counter() - start
    for problem in PROBLEMS:
        store.add_problem(problem)
    added = min(turns, FIRST)
    start = time.perf_counter()
    for number, trajectory in enumerate(trajectories(added // TURNS)):
        store.add_trajectory(RUNS[number % len(RUNS)], trajectory)
    added_s = time.perf_counter() - start
    while (status := store.status()).rows["turns"] < turns:
        double(store)
    row = {
        "benchmark": "store_write",
        "store": kind,
        "evaluations_a_second": round(evaluations / written_s),
        "turns": status.rows["turns"],
        "turns_a_second": round(added / added_s),
        "size_mb": round(status.size_bytes / 1e6),
        "query_s": {name: _seconds(store, name) for name in ARGUMENTS},
    }
    store.close()
    return row


def double(store: Store) -> None:
    """Copy every trajectory with its turns, evaluations and details."""
    with store.writing() as connection:
        last = {
            name: int(connection.scalar(text(f"SELECT coalesce(max(id), 0) FROM {name}")) or 0)
            for name in ("trajectories", "turns", "evaluations", *DETAILS)
        }
        moved = {"trajectories": {"id": "trajectories", "number": "trajectories"}}
        moved["turns"] = {"id": "turns", "trajectory_id": "trajectories"}
        moved["evaluations"] = {"id": "evaluations", "turn_id": "turns"}
        moved |= {name: {"id": name, "evaluation_id": "evaluations"} for name in DETAILS}
        for name, shifts in moved.items():
            columns = [column.name for column in Row.metadata.tables[name].columns]
            shown = [f"{column} + {last[shifts[column]]}" if column in shifts else column for column in columns]
            where = {"evaluations": "turn_id IS NOT NULL"}.get(name, "TRUE")
            if name in DETAILS:
                where = "evaluation_id IN (SELECT id FROM evaluations WHERE turn_id IS NOT NULL)"
                where += f" AND evaluation_id <= {last['evaluations']}"
            connection.execute(
                text(f"INSERT INTO {name} ({', '.join(columns)}) SELECT {', '.join(shown)} FROM {name} WHERE {where}")
            )


def _seconds(store: Store, name: str) -> list[float]:
    spent = []
    for _attempt in range(2):
        start = time.perf_counter()
        with ask(store, name, ARGUMENTS[name]) as answer:
            for _ in answer.rows:
                pass
        spent.append(round(time.perf_counter() - start, 3))
    return spent


@click.command(help=__doc__)
@click.option("--evaluations", default=5000, show_default=True)
@click.option("--turns", default=100_000, show_default=True)
@click.option("--only", type=click.Choice(["sqlite", "postgres"]), help="One database alone.")
def main(evaluations: int, turns: int, only: str | None) -> None:
    """Measure each database."""
    folder = Path(tempfile.mkdtemp(prefix="dq-s-", dir="/tmp"))
    try:
        if only != "postgres":
            click.echo(json.dumps(measure(f"sqlite:///{folder}/drkq.sqlite", "sqlite", evaluations, turns)))
        if only != "sqlite":
            place = folder / "pg"
            place.mkdir()
            folder.chmod(0o755)
            server = Postgres(place)
            click.echo(json.dumps(measure(server.url(server.create()), "postgres", evaluations, turns)))
            server.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
