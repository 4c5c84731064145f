"""Verdicts as rows: what later rules made of evaluations, and which verdict of an evaluation stands."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from drkernel_q.evaluation import BaselineTiming, Integrity, Verdict
from drkernel_q.observation import Evidence
from drkernel_q.store.table import VerdictRow, table
from drkernel_q.store.write import insert_new

#: The evaluations under the verdicts that stand, for queries in SQL.
JUDGED = """
    SELECT evaluations.id, evaluations.request_id, problem_hash, kernel_hash, kernel_name, run_id, turn_id,
           device_kind, outcome, profile_ratio, error, submitted_at, finished_at, worker, judged_s,
           COALESCE(verdicts.integrity, evaluations.integrity) AS integrity,
           COALESCE(verdicts.rules_version, evaluations.rules_version) AS rules_version,
           COALESCE(verdicts.speedup, evaluations.speedup) AS speedup,
           COALESCE(verdicts.speedup_low, evaluations.speedup_low) AS speedup_low,
           COALESCE(verdicts.speedup_high, evaluations.speedup_high) AS speedup_high
    FROM evaluations LEFT JOIN verdicts ON verdicts.evaluation_id = evaluations.id AND NOT EXISTS (
        SELECT 1 FROM verdicts AS later WHERE later.evaluation_id = verdicts.evaluation_id AND later.id > verdicts.id
    )
"""
#: Turns with their first facts under the verdict in force, for a join that ends with `turns`. (`judged` on the right of
#: an outer join is made for all evaluations of the store, on SQLite.)
OF_TURN = """
    LEFT JOIN evaluations ON evaluations.turn_id = turns.id AND NOT EXISTS (
        SELECT 1 FROM evaluations AS earlier WHERE earlier.turn_id = turns.id AND earlier.id < evaluations.id
    )
    LEFT JOIN verdicts ON verdicts.evaluation_id = evaluations.id AND NOT EXISTS (
        SELECT 1 FROM verdicts AS later WHERE later.evaluation_id = verdicts.evaluation_id AND later.id > verdicts.id
    )
"""
#: Columns of such facts.
FACTS_OF_TURN = """
    evaluations.outcome, COALESCE(verdicts.integrity, evaluations.integrity) AS integrity,
    COALESCE(verdicts.speedup_low, evaluations.speedup_low) AS speedup_low,
    COALESCE(verdicts.speedup, evaluations.speedup) AS speedup,
    COALESCE(verdicts.speedup_high, evaluations.speedup_high) AS speedup_high,
    evaluations.profile_ratio
"""


def add(connection: Connection, evaluation_id: int, verdict: Verdict) -> None:
    """Store a verdict; one of the same version about the same evaluation stays as it is."""
    values = verdict.model_dump(mode="json") | speeds(verdict)
    values |= {"evaluation_id": evaluation_id, "judged_at": datetime.now(UTC)}
    connection.execute(insert_new(connection, VerdictRow).values(**values))


def speeds(verdict: Verdict) -> dict[str, float]:
    """The headline speedup and its interval, as columns; nothing where no raw times were there."""
    headline = verdict.baselines[0] if verdict.baselines else None
    return headline.model_dump(include={"speedup", "speedup_low", "speedup_high"}) if headline else {}


def latest(connection: Connection, evaluation_ids: Collection[int]) -> Mapping[int, Verdict]:
    """Find the verdict that stands of each of these evaluations; none for one that was never judged again."""
    verdicts = table(VerdictRow)
    statement = select(verdicts).where(verdicts.c.evaluation_id.in_(evaluation_ids)).order_by(verdicts.c.id)
    return {row.evaluation_id: _verdict(row) for row in connection.execute(statement)}


def _verdict(row: Any) -> Verdict:
    return Verdict(
        rules_version=row.rules_version,
        integrity=Integrity(row.integrity),
        evidence=tuple(map(Evidence.model_validate, row.evidence)),
        baselines=tuple(map(BaselineTiming.model_validate, row.baselines)),
    )
