"""Judging again: the rules of this drkq over the facts of old evaluations, without a device.

Nothing is deleted or overwritten: a verdict is added, and the evaluation keeps the one that its judge gave.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import Connection, Select, func, select

from drkernel_q import rules
from drkernel_q.artefact import unpack
from drkernel_q.audit import Audit
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation, Integrity, Verdict
from drkernel_q.store import audit, facts, verdict
from drkernel_q.store.store import Store
from drkernel_q.store.table import ArtefactRow, EvaluationRow, RunRow, table

#: Evaluations read, judged and written at a time.
PAGE = 200
#: Change of a speedup that is more than the rounding of its raw times, as a fraction.
ROUNDING = 1e-6


class Change(NamedTuple):
    """From one verdict to another."""

    before: Integrity
    after: Integrity
    gained: tuple[str, ...]
    """Codes that are evidence now and were not."""
    lost: tuple[str, ...]


@dataclass
class Summary:
    """What came of judging again."""

    rules_version: str
    examined: int = 0
    current: int = 0
    """Evaluations that stand under this version already."""
    lacking: int = 0
    """Evaluations whose facts do not suffice; they keep the verdict that they have."""
    judged: int = 0
    without_raw_times: int = 0
    """Of those judged again: timed, and the speedup could not be computed again."""
    speedups_changed: int = 0
    largest_speedup_change: float = 0.0
    """As a fraction, either way."""
    changes: Counter[Change] = field(default_factory=Counter)
    """Verdicts that changed, in integrity or in codes, and how often."""


def rejudge(store: Store, *, run: str | None = None, since: datetime | None = None, dry_run: bool = False) -> Summary:
    """Apply the rules to the evaluations of a run, or of all, that finished at `since` or later.

    Raises:
        BadInput: there is no such run.
        NoStore: the database cannot be reached; what was written until then stays.
    """
    summary = Summary(rules.version())
    for page in _pages(store, run, since):
        verdicts = [(row.id, _judge(row, later, measured, summary)) for row, later, measured in page]
        if not dry_run:
            with store.writing() as connection:
                for identity, found in verdicts:
                    if found is not None:
                        verdict.add(connection, identity, found)
    return summary


def _pages(
    store: Store, run: str | None, since: datetime | None
) -> Iterator[list[tuple[Any, Verdict | None, Audit | None]]]:
    """Read evaluations with the verdicts in force and the audits of their problems, in the order of their ids."""
    statement, last = _statement(run, since), 0
    while True:
        with store.reading() as connection:
            if run is not None:
                _check_run(connection, run)
            rows = connection.execute(statement.where(table(EvaluationRow).c.id > last)).all()
            later = verdict.latest(connection, [row.id for row in rows])
            audits = {problem: audit.find(connection, problem) for problem in {row.problem_hash for row in rows}}
            page = [(row, later.get(row.id), audits[row.problem_hash].get(row.device_kind)) for row in rows]
        if not page:
            return
        last = page[-1][0].id
        yield page


def _statement(run: str | None, since: datetime | None) -> Select[Any]:
    evaluations, artefacts, runs = table(EvaluationRow), table(ArtefactRow), table(RunRow)
    measured = evaluations.alias()
    wanted = ("id", "problem_hash", "device_kind", "document")
    statement = (
        select(*(evaluations.c[name] for name in wanted), artefacts.c.packed)
        .outerjoin(measured, measured.c.request_id == evaluations.c.measured_for)
        .outerjoin(artefacts, artefacts.c.evaluation_id == func.coalesce(measured.c.id, evaluations.c.id))
        .order_by(evaluations.c.id)
        .limit(PAGE)
    )
    if run is not None:
        statement = statement.join(runs, runs.c.id == evaluations.c.run_id).where(runs.c.name == run)
    return statement if since is None else statement.where(evaluations.c.finished_at >= since)


def _check_run(connection: Connection, run: str) -> None:
    runs = table(RunRow).c
    if connection.scalar(select(runs.id).where(runs.name == run)) is None:
        raise BadInput(f"There is no run named `{run}`.")


def _judge(row: Any, later: Verdict | None, measured: Audit | None, summary: Summary) -> Verdict | None:
    """Judge one evaluation again; None when that gives nothing new."""
    summary.examined += 1
    try:
        judged = facts.load(row.document)
    except ValidationError:  # written by a drkq whose documents had other fields
        summary.lacking += 1
        return None
    before = judged if later is None else judged.revised(later)
    if before.rules_version == rules.version(measured):
        summary.current += 1
        return None
    if judged.observations is None or judged.protocol is None:
        summary.lacking += 1
        return None
    found = rules.judge(judged, unpack(row.packed) if row.packed else None, measured)
    if found.integrity is Integrity.UNKNOWN and rules.missing(judged):
        summary.lacking += 1
        return None
    _count(before, judged.revised(found), found, summary)
    return found


def _count(before: Evaluation, after: Evaluation, found: Verdict, summary: Summary) -> None:
    summary.judged += 1
    codes = [{item.code for item in each.evidence} for each in (before, after)]
    change = Change(
        before.integrity, after.integrity, tuple(sorted(codes[1] - codes[0])), tuple(sorted(codes[0] - codes[1]))
    )
    if change.before is not change.after or change.gained or change.lost:
        summary.changes[change] += 1
    summary.without_raw_times += after.timing is not None and not found.baselines
    if before.speedup and after.speedup:
        moved = abs(math.expm1(math.log(after.speedup / before.speedup)))
        summary.speedups_changed += moved > ROUNDING
        summary.largest_speedup_change = max(summary.largest_speedup_change, moved)
