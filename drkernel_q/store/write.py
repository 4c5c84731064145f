"""The few statements that every writer needs."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Insert, select
from sqlalchemy.dialects import postgresql, sqlite

from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.store.table import KernelRow, ProblemRow, Row, RunRow, table


def insert_new(connection: Connection, row: type[Row]) -> "postgresql.Insert | sqlite.Insert":
    """INSERT that passes over rows whose key is there already."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table(row)).on_conflict_do_nothing()
    return sqlite.insert(table(row)).on_conflict_do_nothing()


def insert_once(connection: Connection, row: type[Row], values: Mapping[str, Any]) -> int | None:
    """Insert a row; return its id, or None when its key is there already."""
    identity = table(row).c.id
    added: int | None = connection.scalar(insert_new(connection, row).values(**values).returning(identity))
    return added


def upsert(
    connection: Connection, row: type[Row], values: Mapping[str, Any], *, key: Sequence[str], latest: str
) -> int | None:
    """Insert a row, or overwrite the one with its key by a later one; None when what is there is as late."""
    columns = table(row).c
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table(row)).values(**values)
    kept: int | None = connection.scalar(
        statement.on_conflict_do_update(
            index_elements=key,
            set_={name: value for name, value in statement.excluded.items() if name in values},
            where=columns[latest] < statement.excluded[latest],
        ).returning(columns.id)
    )
    return kept


def add_missing(connection: Connection, row: type[Row], rows: Iterable[Mapping[str, Any]], *, key: str) -> None:
    """Insert what is not there yet, in the order of its key: whoever locks in one order meets no deadlock."""
    by_key = {values[key]: values for values in rows}
    if by_key:
        statement: Insert = insert_new(connection, row)
        connection.execute(statement, [dict(by_key[name]) for name in sorted(by_key)])


def add_problems(connection: Connection, problems: Iterable[Problem]) -> None:
    """Store problems under their hashes."""
    rows = [{"hash": each.hash, "name": each.name, "source": each.source} for each in problems]
    add_missing(connection, ProblemRow, rows, key="hash")


def add_kernels(connection: Connection, kernels: Iterable[Kernel]) -> None:
    """Store kernels under their hashes."""
    rows = [
        {
            "hash": each.hash,
            "name": each.name,
            "source": each.source,
            "source_bytes": len(each.source.encode("utf-8", "surrogatepass")),
        }
        for each in kernels
    ]
    add_missing(connection, KernelRow, rows, key="hash")


def run_ids(connection: Connection, names: Iterable[str], *, kind: str) -> dict[str, int]:
    """Find the runs of these names, making those that are missing."""
    wanted = set(names)
    if not wanted:
        return {}
    now = datetime.now(UTC)
    rows = [{"name": name, "kind": kind, "created_at": now} for name in wanted]
    add_missing(connection, RunRow, rows, key="name")
    runs = table(RunRow).c
    found = connection.execute(select(runs.name, runs.id).where(runs.name.in_(wanted)))
    return {name: int(number) for name, number in found}
