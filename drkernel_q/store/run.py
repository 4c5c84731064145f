"""Runs as rows: what a run was announced as."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from drkernel_q.store.table import RunRow, table


class Run(NamedTuple):
    """One launch of a command that evaluates, samples or trains."""

    name: str
    kind: str
    created_at: datetime
    settings: Mapping[str, Any] | None
    """As resolved when it was announced; None if nobody announced it."""


def find_run(connection: Connection, name: str) -> Run | None:
    """Find a run by its name."""
    runs = table(RunRow).c
    row = connection.execute(
        select(runs.name, runs.kind, runs.created_at, runs.settings).where(runs.name == name)
    ).first()
    return None if row is None else Run(*row)
