"""Facts as a file: evaluations with the sources they are about, so that another store can answer by them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from drkernel_q.errors import BadInput
from drkernel_q.evaluation import EvaluationRequest, Protocol, Reply
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.store import facts
from drkernel_q.store.store import Store

#: Columns without which a row says nothing.
_NEEDED = ("request_id", "problem_name", "problem_source", "kernel_name", "kernel_source", "protocol", "document")
#: Evaluations that are stored in one transaction.
_BATCH = 100


class Imported(NamedTuple):
    """What an import did."""

    added: int
    known: int
    """Evaluations that were there already."""
    device_kinds: tuple[str, ...]


def import_facts(store: Store, path: Path) -> Imported:
    """Record the evaluations of a Parquet file that `drkq db export --table facts` wrote; twice is once.

    Raises:
        BadInput: the file cannot be read, or holds something else.
    """
    added, seen, kinds = 0, 0, set()
    for pairs in _batches(path):
        added += sum(store.record_all(pairs))
        seen += len(pairs)
        kinds |= {reply.evaluation.environment.device_kind for _, reply in pairs if reply.evaluation}
    return Imported(added, seen - added, tuple(sorted(kinds)))


def _batches(path: Path) -> Iterator[list[tuple[EvaluationRequest, Reply]]]:
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in _NEEDED if name not in file.schema_arrow.names]
            if missing:
                raise BadInput(f"{path} holds no facts: it has no column `{missing[0]}`.")
            for batch in file.iter_batches(batch_size=_BATCH):
                yield [_pair(row, path) for row in batch.to_pylist()]
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {error}.") from error


def _pair(row: dict[str, Any], path: Path) -> tuple[EvaluationRequest, Reply]:
    now = datetime.now(UTC)
    try:
        request = EvaluationRequest(
            id=row["request_id"],
            problem=Problem(name=row["problem_name"], source=row["problem_source"]),
            kernel=Kernel(name=row["kernel_name"], source=row["kernel_source"]),
            protocol=Protocol.model_validate_json(row["protocol"]),
            run=row.get("run"),
            submitted_at=(row.get("submitted_at") or now).isoformat(),
        )
        reply = Reply(
            id=request.id,
            attempt=row.get("attempt") or 1,
            worker=row.get("worker") or "unknown",
            evaluation=facts.load(json.loads(row["document"])),
            finished_at=(row.get("finished_at") or now).isoformat(),
        )
    except (ValidationError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"A row of {path} holds no facts: {' '.join(str(error).split())[:200]}.") from error
    return request, reply
