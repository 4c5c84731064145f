"""Recording replies: at least once delivered, once in effect.

Three rules, all kept by unique keys and single statements, never by reading and then writing:
a reply is the same when request and attempt are the same; the first evaluation of a request stands; and an
attempt that was overtaken by a later one writes no evaluation.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Select, func, select, update

from drkernel_q.audit import Audit, AuditRequest
from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation, EvaluationRequest, Failure, Reply
from drkernel_q.request import Request
from drkernel_q.store import audit, facts
from drkernel_q.store.column import parse_utc
from drkernel_q.store.table import AttemptRow, EvaluationRow, KernelRow, TurnRow, table
from drkernel_q.store.write import add_kernels, add_problems, insert_once, run_ids

#: Evaluations of one thing that are looked at for one that lasts.
CANDIDATES = 5
#: Kind of a run that nobody announced before its first evaluation.
UNANNOUNCED_RUN = "eval"


def record_all(connection: Connection, pairs: Sequence[tuple[Request, Reply]]) -> list[bool]:
    """Record replies to their requests; True for each that told something new.

    Raises:
        BadInput: a pair does not belong together, or a reply holds neither facts nor a failure.
    """
    for request, reply in pairs:
        _check(request, reply)
    add_problems(connection, [request.problem for request, _ in pairs])
    facts.add_environments(
        connection, [found.environment for _, reply in pairs if (found := _found(reply)) is not None]
    )
    judged = [request for request, _ in pairs if isinstance(request, EvaluationRequest)]
    add_kernels(connection, [request.kernel for request in judged])
    lock_kernels(connection, {request.kernel.hash for request in judged})
    runs = run_ids(connection, [request.run for request in judged if request.run], kind=UNANNOUNCED_RUN)
    return [_record_either(connection, request, reply, runs) for request, reply in pairs]


def _record_either(connection: Connection, request: Request, reply: Reply, runs: dict[str, int]) -> bool:
    if isinstance(request, EvaluationRequest):
        return _record(connection, request, reply, runs.get(request.run or ""))
    return isinstance(request, AuditRequest) and audit.record(connection, request, reply)


def find(connection: Connection, request_id: str) -> Reply | None:
    """Find what is known of a request: its evaluation, or else its latest failure."""
    evaluations = table(EvaluationRow).c
    row = connection.execute(_replies().where(evaluations.request_id == request_id)).first()
    if row is not None:
        return _reply(row)
    attempts = table(AttemptRow)
    failed = (
        select(attempts)
        .where(attempts.c.request_id == request_id, attempts.c.failure_kind.is_not(None))
        .order_by(attempts.c.attempt.desc())
    )
    row = connection.execute(failed).first()
    if row is None:
        return None
    return Reply(
        id=request_id,
        attempt=row.attempt,
        worker=row.worker,
        failure=Failure(kind=row.failure_kind, message=row.failure_message),
        finished_at=row.finished_at.isoformat(),
    )


def find_content(connection: Connection, content_keys: Collection[str], since: datetime) -> Reply | None:
    """Find the latest lasting evaluation with one of these content keys that finished at `since` or later."""
    evaluations = table(EvaluationRow).c
    statement = (
        _replies()
        .where(
            evaluations.content_key.in_(content_keys),
            evaluations.request_id.is_not(None),
            evaluations.measured_for.is_(None),
            evaluations.finished_at >= since,
        )
        .order_by(evaluations.finished_at.desc())
        .limit(CANDIDATES)
    )
    for row in connection.execute(statement):
        try:
            reply = _reply(row)
        except ValidationError:  # written by a drkq whose documents had other fields
            continue
        if reply.evaluation is not None and reply.evaluation.lasting:
            return reply
    return None


def _replies() -> Select[Any]:
    evaluations = table(EvaluationRow).c
    names = ("request_id", "document", "attempt", "worker", "finished_at", "measured_for")
    return select(*(evaluations[name] for name in names))


def _reply(row: Any) -> Reply:
    return Reply(
        id=row.request_id,
        attempt=row.attempt,
        worker=row.worker,
        evaluation=facts.load(row.document),
        finished_at=row.finished_at.isoformat(),
        measured_for=row.measured_for,
    )


def lock_kernels(connection: Connection, hashes: set[str]) -> None:
    """Make writers about the same kernels take turns (SQLite has one writer anyway)."""
    if connection.dialect.name == "postgresql":
        kernels = table(KernelRow).c
        ordered = select(kernels.hash).where(kernels.hash.in_(hashes)).order_by(kernels.hash)
        connection.execute(ordered.with_for_update(key_share=True))


def _check(request: Request, reply: Reply) -> None:
    if request.id != reply.id:
        raise BadInput(f"The reply to {reply.id} came with the request {request.id}.")
    of_problem = isinstance(request, AuditRequest)
    wanted = reply.audit if of_problem else reply.evaluation
    if (wanted is None) == (reply.failure is None) or _found(reply) is not wanted:
        what = "audit" if of_problem else "evaluation"
        raise BadInput(f"The reply to {reply.id} must hold either an {what} or a failure.")
    try:
        parse_utc(reply.finished_at)
        parse_utc(request.submitted_at)
    except ValueError as error:
        raise BadInput(f"A time in the reply to {reply.id} is no ISO 8601 time.") from error


def _record(connection: Connection, request: EvaluationRequest, reply: Reply, run_id: int | None) -> bool:
    if not _add_attempt(connection, request, reply, run_id):
        return False
    if reply.evaluation is None:
        return True
    if _overtaken(connection, reply):
        return False
    known = {
        "request_id": request.id,
        "kernel_name": request.kernel.name,
        "content_key": request.content_key(reply.evaluation.conditions),
        "protocol": request.protocol.model_dump(mode="json"),
        "worker": reply.worker,
        "attempt": reply.attempt,
        "measured_for": reply.measured_for,
        "judged_s": None if reply.cached else reply.evaluation.durations_s.get("total"),
        "submitted_at": parse_utc(request.submitted_at),
        "finished_at": parse_utc(reply.finished_at),
    }
    links = {"run_id": run_id, "turn_id": _existing_turn(connection, request.turn)}
    kept = _adopt(connection, request, reply.evaluation, known, links)
    if kept is None:
        kept = _add_evaluation(connection, request, reply.evaluation, known | links)
    if kept is not None:
        facts.add_artefacts(connection, kept, reply.artefacts)
    return kept is not None


def _found(reply: Reply) -> Evaluation | Audit | None:
    return reply.evaluation or reply.audit


def _add_attempt(connection: Connection, request: EvaluationRequest, reply: Reply, run_id: int | None) -> bool:
    failure = reply.failure
    values = {
        "request_id": request.id,
        "attempt": reply.attempt,
        "problem_hash": request.problem.hash,
        "kernel_hash": request.kernel.hash,
        "run_id": run_id,
        "worker": reply.worker,
        "failure_kind": failure.kind if failure else None,
        "failure_message": failure.message if failure else None,
        "finished_at": parse_utc(reply.finished_at),
    }
    return insert_once(connection, AttemptRow, values) is not None


def _overtaken(connection: Connection, reply: Reply) -> bool:
    attempts = table(AttemptRow).c
    newest = select(func.max(attempts.attempt)).where(attempts.request_id == reply.id)
    return int(connection.scalar(newest) or 0) > reply.attempt


def _existing_turn(connection: Connection, turn: int | None) -> int | None:
    """The turn, if it is there: facts are worth keeping when a link is not."""
    if turn is None:
        return None
    turns = table(TurnRow).c
    return connection.scalar(select(turns.id).where(turns.id == turn))


def _adopt(
    connection: Connection,
    request: EvaluationRequest,
    evaluation: Evaluation,
    known: dict[str, Any],
    links: dict[str, int | None],
) -> int | None:
    """Give the row that a trajectory brought the request it belongs to, and return its id; None if there is none."""
    evaluations = table(EvaluationRow)
    same = (
        select(func.min(evaluations.c.id))
        .where(
            evaluations.c.request_id.is_(None),
            evaluations.c.document_hash == facts.document_hash(evaluation),
            evaluations.c.kernel_hash == request.kernel.hash,
            evaluations.c.problem_hash == request.problem.hash,
        )
        .scalar_subquery()
    )
    linked = {name: func.coalesce(evaluations.c[name], link) for name, link in links.items()}
    statement = update(evaluations).where(evaluations.c.id == same).values(**known, **linked)
    adopted: int | None = connection.scalar(statement.returning(evaluations.c.id))
    return adopted


def _add_evaluation(
    connection: Connection, request: EvaluationRequest, evaluation: Evaluation, known: dict[str, Any]
) -> int | None:
    about = {"problem_hash": request.problem.hash, "kernel_hash": request.kernel.hash}
    added = insert_once(connection, EvaluationRow, about | known | facts.columns(evaluation))
    if added is not None:
        facts.add_details(connection, added, evaluation)
    return added
