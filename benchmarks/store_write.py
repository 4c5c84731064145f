"""The store: evaluations a second that a persister writes, and what questions take when it is full.

`PYTHONPATH=. python benchmarks/store_write.py --turns 100000,1000000` works on SQLite in a file and on a PostgreSQL of
its own, both in a folder that is removed (`--folder` says on which disk; a million turns take 9 to 12 GB). It prints
one JSON line for each database and way of writing, and for each database and number of turns one with the queries and
one with `drkq report`; then tables. Full stores are filled by their tables (`store_fill`), and not by the path that is
measured. `--store URL` asks a store that was filled so.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from sqlalchemy import create_engine, text

from benchmarks.store_fill import RUN, SOURCE, Filler
from drkernel_q.cli.output import emit_table
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Protocol, Reply
from drkernel_q.store import Store
from drkernel_q.store.query import QUERIES, ask
from tests.need import postgres_program
from tests.services import Postgres
from tests.values import a_reply, a_request, an_evaluation, observed

#: Replies that the persister writes in one transaction, and one at a time.
BATCHES = (200, 1)


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


def query_times(store: Store) -> dict[str, float]:
    """Ask each named query three times; return the median of its seconds, and of the lookups that a client makes."""
    times = {name: _median_s(partial(_ask, store, name)) for name in QUERIES}
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


def analyze(url: str) -> None:
    """Let the database look at what it holds, as PostgreSQL does by itself some time after."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("ANALYZE" if engine.dialect.name == "sqlite" else "VACUUM ANALYZE"))
    engine.dispose()


def reporting(url: str) -> dict[str, float]:
    """Run `drkq report` once; return its seconds and its memory at most, without a database server's."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "drkernel_q", "report", RUN, "-o", f"{folder}/report.html"]
        environment = os.environ | {"DRKQ_STORE_URL": url, "DRKQ_DATA_DIR": folder}
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise click.ClickException("The report failed.")
        size_bytes = Path(folder, "report.html").stat().st_size
    memory_mb, cpu_s = usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime
    found = {"seconds": round(seconds, 1), "cpu_s": round(cpu_s, 1), "memory_mb": round(memory_mb)}
    return found | {"page_kb": size_bytes // 1000}


@contextmanager
def stores(names: list[str], folder: Path) -> Iterator[dict[str, tuple[str, Store]]]:
    """Open an empty store in each kind of database."""
    opened: dict[str, tuple[str, Store]] = {}
    server: Postgres | None = None
    try:
        for name in names:
            url = f"sqlite:///{folder / 'drkq.sqlite'}"
            if name == "postgres":
                (folder / "postgres").mkdir()
                folder.chmod(0o755)
                server = Postgres(folder / "postgres")
                url = server.url(server.create())
            opened[name] = url, Store.open(url)
            opened[name][1].upgrade()
        yield opened
    finally:
        for _, store in opened.values():
            store.close()
        if server is not None:
            server.stop()


@click.command(help=__doc__)
@click.option("--databases", default="sqlite,postgres", show_default=True, help="Which, by comma.")
@click.option("--turns", default="100000", show_default=True, help="Turns of a full store, ascending, by comma.")
@click.option("--seconds", default=10.0, show_default=True, help="How long each way of writing is tried.")
@click.option("--store", "urls", multiple=True, metavar="URL", help="Only ask this full store; may be repeated.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Folder for the databases' own folder.")
def main(databases: str, turns: str, seconds: float, urls: tuple[str, ...], folder: Path | None) -> None:
    """Measure writing, then fill the stores and ask."""
    for url in urls:
        with Store.open(url) as store:
            _ask_all(url.partition(":")[0].partition("+")[0], store, url, {})
    if urls:
        return
    names = databases.split(",")
    if "postgres" in names and postgres_program("initdb") is None:
        raise click.ClickException("PostgreSQL is not installed.")
    own = Path(tempfile.mkdtemp(prefix="drkq-stores-", dir=folder))
    try:
        with stores(names, own) as opened:
            rates = [
                {"benchmark": "store_write", "database": name, "batch": batch, "evaluations_per_s": round(rate, 1)}
                for name, (_, store) in opened.items()
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
                _fill_and_ask(name, *opened[name], [int(number) for number in turns.split(",")])
    finally:
        shutil.rmtree(own)


def _fill_and_ask(name: str, url: str, store: Store, sizes: list[int]) -> None:
    filler = Filler(store)
    for size in sizes:
        start = time.perf_counter()
        filler.fill(size)
        _ask_all(name, store, url, {"filled_s": round(time.perf_counter() - start, 1)})


def _ask_all(name: str, store: Store, url: str, more: dict[str, float]) -> None:
    analyze(url)
    status = store.status()
    about = {"database": name, "turns": status.rows["turns"], "size_mb": round(status.size_bytes / 1e6), **more}
    queries = {query: round(1000 * seconds, 2) for query, seconds in query_times(store).items()}
    click.echo(json.dumps({"benchmark": "store_query", **about, "queries_ms": queries}))
    click.echo(json.dumps({"benchmark": "report", **about, **reporting(url)}))
    emit_table(("query", f"{name}, {about['turns']} turns, ms"), list(queries.items()))


if __name__ == "__main__":
    main()
