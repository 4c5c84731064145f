"""Evaluations as rows: what is kept of one, beside its whole document."""

import base64
import binascii
import json
from typing import Any

from sqlalchemy import Connection, func, insert, select

from drkernel_q.artefact import Artefacts, unpack
from drkernel_q.environment import Conditions, Environment
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation
from drkernel_q.store.table import ArtefactRow, EnvironmentRow, EvaluationRow, EvidenceRow, ProfileKernelRow, table
from drkernel_q.store.write import add_missing, insert_new
from drkernel_q.value import content_hash


def document(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON, with its computed fields, as `drkq eval --json` writes it."""
    return evaluation.model_dump(mode="json")


def document_hash(evaluation: Evaluation) -> str:
    """Hash of the whole document: equal only for the very same measurement."""
    return content_hash("document", json.dumps(document(evaluation), sort_keys=True))


def load(stored: dict[str, Any]) -> Evaluation:
    """Read an evaluation back; computed fields are computed again."""
    computed = Evaluation.model_computed_fields
    known = {name: item for name, item in stored.items() if name not in computed}
    # Evidence of the first release has no weight.
    known["evidence"] = [{"weight": None} | each for each in stored.get("evidence", ())]
    return Evaluation.model_validate(known)


def environment_hash(environment: Environment) -> str:
    """Content hash of an environment."""
    return content_hash("environment", json.dumps(environment.model_dump(mode="json"), sort_keys=True))


def add_environments(connection: Connection, environments: list[Environment]) -> None:
    """Store environments under their hashes."""
    rows = [{"hash": environment_hash(each)} | each.model_dump(mode="json") for each in environments]
    add_missing(connection, EnvironmentRow, rows, key="hash")


def conditions(connection: Connection, device_kind: str) -> list[Conditions]:
    """Find under which conditions evaluations on a kind of device were made."""
    evaluations, environments = table(EvaluationRow).c, table(EnvironmentRow)
    names = list(Environment.model_fields)
    statement = (
        select(*(environments.c[name] for name in names), evaluations.rules_version)
        .join(environments, environments.c.hash == evaluations.environment_hash)
        .where(environments.c.device_kind == device_kind)
        .distinct()
    )
    found = {}
    for row in connection.execute(statement):
        environment = Environment.model_validate({name: getattr(row, name) for name in names})
        made = environment.conditions(row.rules_version)
        found[made.model_dump_json()] = made
    return list(found.values())


def columns(evaluation: Evaluation) -> dict[str, Any]:
    """The columns of `evaluations` that follow from the facts alone."""
    timing = evaluation.timing
    return {
        "device_kind": evaluation.environment.device_kind,
        "outcome": evaluation.outcome.value,
        "integrity": evaluation.integrity.value,
        "rules_version": evaluation.rules_version,
        "speedup": timing.speedup if timing else None,
        "speedup_low": timing.speedup_low if timing else None,
        "speedup_high": timing.speedup_high if timing else None,
        "profile_ratio": evaluation.profile_ratio,
        "reference_ms": timing.reference_ms if timing else None,
        "candidate_ms": timing.candidate_ms if timing else None,
        "error": evaluation.error,
        "document": document(evaluation),
        "document_hash": document_hash(evaluation),
        "environment_hash": environment_hash(evaluation.environment),
    }


def add_details(connection: Connection, evaluation_id: int, evaluation: Evaluation) -> None:
    """Store evidence and profiled kernels, one row each."""
    evidence = [{"evaluation_id": evaluation_id} | each.model_dump(mode="json") for each in evaluation.evidence]
    if evidence:
        connection.execute(insert(table(EvidenceRow)), evidence)
    profiled = [
        {
            "evaluation_id": evaluation_id,
            "name": each.name,
            "device_us": each.device_us,
            "launches": each.launches,
            "origin": each.origin.value,
        }
        for each in (evaluation.profile.kernels if evaluation.profile else ())
    ]
    if profiled:
        connection.execute(insert(table(ProfileKernelRow)), profiled)


def add_artefacts(connection: Connection, evaluation_id: int, packed: str | None) -> None:
    """Store raw measurements, as a reply brings them, beside their evaluation.

    Raises:
        BadInput: they are no base64.
    """
    if packed is None:
        return
    try:
        blob = base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise BadInput(f"The artefacts of a reply are no base64: {error}.") from error
    values = {"evaluation_id": evaluation_id, "size_bytes": len(blob), "packed": blob}
    connection.execute(insert_new(connection, ArtefactRow).values(**values))


def artefacts(connection: Connection, request_id: str) -> Artefacts | None:
    """Find the raw measurements behind the evaluation of a request."""
    kept, asked, measured = table(ArtefactRow), table(EvaluationRow).alias(), table(EvaluationRow).alias()
    statement = (
        select(kept.c.packed)
        .join(measured, measured.c.id == kept.c.evaluation_id)
        .join(asked, measured.c.request_id == func.coalesce(asked.c.measured_for, asked.c.request_id))
        .where(asked.c.request_id == request_id)
    )
    packed = connection.scalar(statement)
    return None if packed is None else unpack(packed)
