"""News: what became known since somebody last asked, for those who count."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from drkernel_q.store.table import AttemptRow, EvaluationRow, table


class Judged(NamedTuple):
    """One evaluation, as far as it is counted."""

    outcome: str
    integrity: str
    device_kind: str
    durations_s: Mapping[str, float]
    """Seconds by stage."""


class News(NamedTuple):
    """What is new, and where to go on from."""

    evaluation: int
    """Row of the last evaluation that was looked at."""
    attempt: int
    """The same of attempts."""
    judged: tuple[Judged, ...]
    failures: tuple[str, ...]
    """Kinds of the failures of attempts."""


def latest(connection: Connection) -> News:
    """Begin with what is there now."""
    rows = (table(EvaluationRow).c.id, table(AttemptRow).c.id)
    evaluation, attempt = (int(connection.scalar(select(func.max(row))) or 0) for row in rows)
    return News(evaluation, attempt, (), ())


def since(connection: Connection, last: News, limit: int) -> News:
    """Read the next rows after `last`, `limit` of each kind at most.

    Transactions that commit out of order may hide a row from whoever asks in between: this is for rates.
    """
    rows, attempts = table(EvaluationRow).c, table(AttemptRow).c
    judged = connection.execute(
        select(rows.id, rows.outcome, rows.integrity, rows.device_kind, rows.document)
        .where(rows.id > last.evaluation)
        .order_by(rows.id)
        .limit(limit)
    ).all()
    failed = connection.execute(
        select(attempts.id, attempts.failure_kind).where(attempts.id > last.attempt).order_by(attempts.id).limit(limit)
    ).all()
    return News(
        judged[-1].id if judged else last.evaluation,
        failed[-1].id if failed else last.attempt,
        tuple(Judged(r.outcome, r.integrity, r.device_kind, r.document.get("durations_s", {})) for r in judged),
        tuple(row.failure_kind for row in failed if row.failure_kind is not None),
    )
