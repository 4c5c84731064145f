"""What can be exported from the store: documents and rows, read a page at a time from one state of it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Select, select

from drkernel_q.store import rollout, verdict
from drkernel_q.store.store import Store
from drkernel_q.store.table import EvaluationRow, KernelRow, ProblemRow, RunRow, table
from drkernel_q.trajectory import Trajectory, Turn

#: Rows fetched at a time.
PAGE = 200

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Something that can be exported: as nested documents (JSON Lines), or as rows of one schema (Parquet, CSV)."""

    sentence: str
    schema: pa.Schema
    documents: Callable[[Store, str | None], Iterator[Document]]
    rows: Callable[[Store, str | None], Iterator[Document]]


_TEXT, _NUMBER, _COUNT, _TIME = pa.string(), pa.float64(), pa.int64(), pa.timestamp("us", tz="UTC")

_EVALUATION_SCHEMA = pa.schema(
    [
        pa.field("request_id", _TEXT),
        pa.field("run", _TEXT),
        pa.field("turn_id", _COUNT),
        pa.field("problem_name", _TEXT, nullable=False),
        pa.field("problem_hash", _TEXT, nullable=False),
        pa.field("kernel_name", _TEXT, nullable=False),
        pa.field("kernel_hash", _TEXT, nullable=False),
        pa.field("content_key", _TEXT),
        pa.field("device_kind", _TEXT, nullable=False),
        pa.field("outcome", _TEXT, nullable=False),
        pa.field("integrity", _TEXT, nullable=False),
        pa.field("rules_version", _TEXT),
        pa.field("speedup", _NUMBER),
        pa.field("speedup_low", _NUMBER),
        pa.field("speedup_high", _NUMBER),
        pa.field("profile_ratio", _NUMBER),
        pa.field("reference_ms", _NUMBER),
        pa.field("candidate_ms", _NUMBER),
        pa.field("error", _TEXT),
        pa.field("worker", _TEXT),
        pa.field("attempt", _COUNT, nullable=False),
        pa.field("measured_for", _TEXT),
        pa.field("submitted_at", _TIME),
        pa.field("finished_at", _TIME, nullable=False),
        pa.field("protocol", _TEXT),
        pa.field("document", _TEXT, nullable=False),
    ]
)

#: Columns that say what was asked and who answered; what was found is in the document.
_REQUEST_FACTS = (
    "request_id",
    "run",
    "turn_id",
    "problem_name",
    "problem_hash",
    "kernel_name",
    "kernel_hash",
    "content_key",
    "protocol",
    "worker",
    "attempt",
    "measured_for",
)

_TURN_SCHEMA = pa.schema(
    [
        pa.field("run", _TEXT, nullable=False),
        pa.field("problem_name", _TEXT, nullable=False),
        pa.field("problem_hash", _TEXT, nullable=False),
        pa.field("number", _COUNT, nullable=False),
        pa.field("turn", _COUNT, nullable=False),
        pa.field("prompt", pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)])), nullable=False),
        pa.field("completion", _TEXT, nullable=False),
        pa.field("kernel_name", _TEXT),
        pa.field("kernel_hash", _TEXT),
        pa.field("kernel_source", _TEXT),
        pa.field("outcome", _TEXT),
        pa.field("integrity", _TEXT),
        pa.field("speedup", _NUMBER),
        pa.field("speedup_low", _NUMBER),
        pa.field("speedup_high", _NUMBER),
        pa.field("profile_ratio", _NUMBER),
        pa.field("error", _TEXT),
        pa.field("finish_reason", _TEXT),
        pa.field("policy_version", _COUNT),
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("output_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(_NUMBER), nullable=False),
        pa.field("document", _TEXT),
    ]
)

#: What `drkernel_q.store.fact_file` reads: the sources, and only what somebody measured.
_FACT_SCHEMA = pa.schema(
    [
        *(field for field in _EVALUATION_SCHEMA if field.name not in ("turn_id", "measured_for")),
        pa.field("problem_source", _TEXT, nullable=False),
        pa.field("kernel_source", _TEXT, nullable=False),
    ]
)

_KERNEL_SCHEMA = pa.schema(
    [
        pa.field("hash", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("source_bytes", _COUNT, nullable=False),
        pa.field("source", _TEXT, nullable=False),
    ]
)


def _pages(store: Store, statement: Select[Any], key: Any, *, revise: bool = False) -> Iterator[Document]:
    """Rows of a statement in the order of its key, a page at a time, all of one state of the store.

    With `revise` they are evaluations, and shown under the verdicts in force.
    """
    last = None
    with store.reading() as connection:
        while True:
            page = statement if last is None else statement.where(key > last)
            rows = [dict(row) for row in connection.execute(page.order_by(key).limit(PAGE)).mappings()]
            if revise:
                _revise(connection, rows)
            yield from rows
            if len(rows) < PAGE:
                return
            last = rows[-1][key.name]


def _revise(connection: Connection, rows: list[Document]) -> None:
    """Put the verdict in force into evaluations, and beside them; the document stays what it was."""
    later = verdict.latest(connection, [row["id"] for row in rows])
    for row in rows:
        found = later.get(row["id"])
        row["verdict"] = found and found.model_dump(mode="json")
        if found is not None:
            row.update(integrity=found.integrity.value, rules_version=found.rules_version, **verdict.speeds(found))


def _evaluations(store: Store, run: str | None, *, sources: bool = False) -> Iterator[Document]:
    evaluations, problems, runs, kernels = (table(row) for row in (EvaluationRow, ProblemRow, RunRow, KernelRow))
    statement = (
        select(
            evaluations.c.id,
            runs.c.name.label("run"),
            problems.c.name.label("problem_name"),
            *(evaluations.c[name] for name in _EVALUATION_SCHEMA.names if name in evaluations.c),
        )
        .join(problems, problems.c.hash == evaluations.c.problem_hash)
        .outerjoin(runs, runs.c.id == evaluations.c.run_id)
    )
    if sources:
        about = (problems.c.source.label("problem_source"), kernels.c.source.label("kernel_source"))
        statement = statement.add_columns(*about).join(kernels, kernels.c.hash == evaluations.c.kernel_hash)
    if run is not None:
        statement = statement.where(runs.c.name == run)
    yield from _pages(store, statement, evaluations.c.id, revise=True)


def _evaluation_documents(store: Store, run: str | None) -> Iterator[Document]:
    for row in _evaluations(store, run):
        document = {name: row[name] for name in _REQUEST_FACTS}
        for name in ("submitted_at", "finished_at"):
            document[name] = row[name] and row[name].isoformat()
        yield document | {"evaluation": row["document"], "verdict": row["verdict"]}


def _evaluation_rows(store: Store, run: str | None) -> Iterator[Document]:
    for row in _evaluations(store, run):
        protocol = row["protocol"] and json.dumps(row["protocol"])
        yield row | {"protocol": protocol, "document": json.dumps(row["document"])}


def _facts(store: Store, run: str | None) -> Iterator[Document]:
    """Evaluations that another store can answer by: measured for a request, with the sources they are about."""
    for row in _evaluations(store, run, sources=True):
        if row["request_id"] is not None and row["protocol"] is not None and row["measured_for"] is None:
            row |= {"protocol": json.dumps(row["protocol"]), "document": json.dumps(row["document"])}
            yield {name: row[name] for name in _FACT_SCHEMA.names}


def _fact_documents(store: Store, run: str | None) -> Iterator[Document]:
    for row in _facts(store, run):
        yield row | {name: row[name] and row[name].isoformat() for name in ("submitted_at", "finished_at")}


def _trajectories(store: Store, run: str | None) -> Iterator[tuple[Document, Trajectory]]:
    with store.reading() as connection:
        for name, problem, number, trajectory in rollout.read(connection, run, revised=True):
            yield {"run": name, "problem_name": problem, "number": number}, trajectory


def _trajectory_documents(store: Store, run: str | None) -> Iterator[Document]:
    for place, trajectory in _trajectories(store, run):
        yield place | trajectory.model_dump(mode="json")


def _turn_rows(store: Store, run: str | None) -> Iterator[Document]:
    for place, trajectory in _trajectories(store, run):
        for turn in trajectory.turns:
            yield place | {"problem_hash": trajectory.problem_hash} | _turn_row(turn)


def _turn_row(turn: Turn) -> Document:
    evaluation = turn.evaluation
    timing = evaluation.timing if evaluation else None
    return {
        "turn": turn.number,
        "prompt": [message.model_dump() for message in turn.prompt],
        "completion": turn.completion,
        "kernel_name": turn.kernel.name if turn.kernel else None,
        "kernel_hash": turn.kernel.hash if turn.kernel else None,
        "kernel_source": turn.kernel.source if turn.kernel else None,
        "outcome": evaluation.outcome.value if evaluation else None,
        "integrity": evaluation.integrity.value if evaluation else None,
        "speedup": timing.speedup if timing else None,
        "speedup_low": timing.speedup_low if timing else None,
        "speedup_high": timing.speedup_high if timing else None,
        "profile_ratio": evaluation.profile_ratio if evaluation else None,
        "error": evaluation.error if evaluation else None,
        "finish_reason": turn.finish_reason,
        "policy_version": turn.policy_version,
        "prompt_ids": list(turn.prompt_ids),
        "output_ids": list(turn.output_ids),
        "logprobs": list(turn.logprobs),
        "document": evaluation.model_dump_json() if evaluation else None,
    }


def _kernels(store: Store, run: str | None) -> Iterator[Document]:
    kernels, evaluations, runs = table(KernelRow), table(EvaluationRow), table(RunRow)
    statement = select(kernels)
    if run is not None:
        of_run = select(evaluations.c.kernel_hash).join(runs, runs.c.id == evaluations.c.run_id)
        statement = statement.where(kernels.c.hash.in_(of_run.where(runs.c.name == run)))
    yield from _pages(store, statement, kernels.c.hash)


DATASETS = {
    "evaluations": Dataset(
        "Finished evaluations: what was asked, and the whole document.",
        _EVALUATION_SCHEMA,
        _evaluation_documents,
        _evaluation_rows,
    ),
    "trajectories": Dataset(
        "Rollouts: one trajectory a line in JSON Lines, one turn a row in Parquet and CSV.",
        _TURN_SCHEMA,
        _trajectory_documents,
        _turn_rows,
    ),
    "facts": Dataset(
        "Evaluations with the sources they are about, for `drkq db import`.",
        _FACT_SCHEMA,
        _fact_documents,
        _facts,
    ),
    "kernels": Dataset("Candidate sources by content hash.", _KERNEL_SCHEMA, _kernels, _kernels),
}
