"""Audits as rows: one for a problem, a kind of device and a version, the latest that was made."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from drkernel_q.audit import AUDIT_VERSION, Audit, AuditRequest
from drkernel_q.evaluation import Reply
from drkernel_q.store import facts
from drkernel_q.store.column import parse_utc
from drkernel_q.store.table import AuditFlagRow, AuditRow, table
from drkernel_q.store.write import upsert


def record(connection: Connection, request: AuditRequest, reply: Reply) -> bool:
    """Keep an audit in place of an earlier one; False when there is none, or it is no later than what is kept."""
    audit = reply.audit
    if audit is None:
        return False
    values = {
        "problem_hash": request.problem.hash,
        "device_kind": audit.environment.device_kind,
        "version": audit.version,
        "speed_rewarded": audit.speed_rewarded,
        "reference_ms": audit.reference_ms,
        "unusable": audit.unusable,
        "document": audit.model_dump(mode="json"),
        "environment_hash": facts.environment_hash(audit.environment),
        "worker": reply.worker,
        "created_at": parse_utc(reply.finished_at),
    }
    kept = upsert(connection, AuditRow, values, key=("problem_hash", "device_kind", "version"), latest="created_at")
    if kept is None:
        return False
    flags = table(AuditFlagRow)
    connection.execute(delete(flags).where(flags.c.audit_id == kept))
    rows = [{"audit_id": kept, "code": flag.code.value, "detail": flag.detail} for flag in audit.flags]
    if rows:
        connection.execute(insert(flags), rows)
    return True


def find(connection: Connection, problem_hash: str) -> Mapping[str, Audit]:
    """Find the audits of a problem, by kind of device; those of another version do not count."""
    audits = table(AuditRow).c
    statement = select(audits.device_kind, audits.document).where(
        audits.problem_hash == problem_hash, audits.version == AUDIT_VERSION
    )
    return {device_kind: _load(document) for device_kind, document in connection.execute(statement)}


def _load(stored: dict[str, Any]) -> Audit:
    """Read an audit back; computed fields are computed again."""
    computed = Audit.model_computed_fields
    return Audit.model_validate({name: item for name, item in stored.items() if name not in computed})
