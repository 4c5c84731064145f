"""Trajectories as rows, and back."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Insert, func, insert, select, update
from sqlalchemy import Row as ResultRow

from drkernel_q.errors import BadInput
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.store import facts, verdict
from drkernel_q.store.record import lock_kernels
from drkernel_q.store.table import (
    EvaluationRow,
    KernelRow,
    MessageRow,
    ProblemRow,
    RunRow,
    TrajectoryRow,
    TurnRow,
    table,
)
from drkernel_q.store.write import add_kernels, insert_new, insert_once, run_ids
from drkernel_q.trajectory import Message, Trajectory, Turn

#: Kind of a run that nobody announced before its first trajectory.
UNANNOUNCED_RUN = "rollout"


def add(connection: Connection, run: str, trajectory: Trajectory) -> int:
    """Store a trajectory whole; return its number among those of its problem in this run.

    Raises:
        BadInput: the problem is not in the store, or a turn has an evaluation but no kernel.
    """
    _check_problem(connection, trajectory.problem_hash)
    run_id = run_ids(connection, [run], kind=UNANNOUNCED_RUN)[run]
    number = _next_number(connection, run_id, trajectory.problem_hash)
    trajectory_id = _insert(
        connection, TrajectoryRow, run_id=run_id, problem_hash=trajectory.problem_hash, number=number
    )
    _prepare(connection, trajectory.turns)
    for turn, tips in zip(trajectory.turns, _add_messages(connection, trajectory.turns), strict=True):
        turn_id = _insert(connection, TurnRow, **_columns(trajectory_id, turn, *tips))
        _link(connection, trajectory_id, turn_id, turn)
    return number


def open_(connection: Connection, run: str, problem_hash: str, number: int) -> Trajectory:
    """Find a trajectory by its number, or begin it; return it with the turns that it has so far.

    Raises:
        BadInput: the problem is not in the store.
    """
    trajectory_id = _find(connection, run, problem_hash, number)
    return Trajectory(problem_hash=problem_hash, turns=tuple(_read_turns(connection, trajectory_id, revised=False)))


def add_turn(connection: Connection, run: str, problem_hash: str, number: int, turn: Turn) -> bool:
    """Store a turn of a trajectory, which is begun if need be; False when it is there already, and then that stands.

    Raises:
        BadInput: the problem is not in the store, or the turn has an evaluation but no kernel.
    """
    trajectory_id = _find(connection, run, problem_hash, number)
    _prepare(connection, (turn,))
    (tips,) = _add_messages(connection, (turn,))
    turn_id = insert_once(connection, TurnRow, _columns(trajectory_id, turn, *tips))
    if turn_id is None:
        return False
    _link(connection, trajectory_id, turn_id, turn)
    return True


def read_one(
    connection: Connection, run: str, problem: str, number: int, *, revised: bool = False
) -> Trajectory | None:
    """Read the trajectory of this number for a problem of this name; None when it is not there."""
    trajectories, runs, problems = table(TrajectoryRow), table(RunRow), table(ProblemRow)
    row = connection.execute(
        select(trajectories.c.id, trajectories.c.problem_hash)
        .join(runs, runs.c.id == trajectories.c.run_id)
        .join(problems, problems.c.hash == trajectories.c.problem_hash)
        .where(runs.c.name == run, problems.c.name == problem, trajectories.c.number == number)
        .order_by(trajectories.c.id.desc())
    ).first()
    if row is None:
        return None
    turns = tuple(_read_turns(connection, row.id, revised=revised))
    return Trajectory(problem_hash=row.problem_hash, turns=turns)


def read(
    connection: Connection, run: str | None, *, revised: bool = False
) -> Iterator[tuple[str, str, int, Trajectory]]:
    """Read the trajectories of a run, or of all, as (run, problem name, number, trajectory), oldest first.

    Evaluations carry the verdicts that their judges gave, or, if `revised`, those of the latest rules applied.
    """
    trajectories, runs, problems = table(TrajectoryRow), table(RunRow), table(ProblemRow)
    statement = (
        select(trajectories, runs.c.name.label("run"), problems.c.name.label("problem"))
        .join(runs, runs.c.id == trajectories.c.run_id)
        .join(problems, problems.c.hash == trajectories.c.problem_hash)
        .order_by(trajectories.c.id)
        .limit(1)
    )
    if run is not None:
        statement = statement.where(runs.c.name == run)
    last = 0
    # One at a time, by key: memory stays that of one trajectory, whatever the driver buffers.
    while (row := connection.execute(statement.where(trajectories.c.id > last)).first()) is not None:
        last = row.id
        turns = tuple(_read_turns(connection, row.id, revised=revised))
        yield row.run, row.problem, row.number, Trajectory(problem_hash=row.problem_hash, turns=turns)


def _check_problem(connection: Connection, problem_hash: str) -> None:
    problems = table(ProblemRow).c
    if connection.scalar(select(problems.hash).where(problems.hash == problem_hash)) is None:
        raise BadInput(f"The problem {problem_hash} of a trajectory is not in the store; add it first.")


def _find(connection: Connection, run: str, problem_hash: str, number: int) -> int:
    """Return the row of a trajectory, making it if it is not there."""
    _check_problem(connection, problem_hash)
    run_id = run_ids(connection, [run], kind=UNANNOUNCED_RUN)[run]
    place = {"run_id": run_id, "problem_hash": problem_hash, "number": number}
    added = insert_once(connection, TrajectoryRow, place)
    if added is not None:
        return added
    trajectories = table(TrajectoryRow).c
    here = (trajectories[name] == value for name, value in place.items())
    return int(connection.execute(select(trajectories.id).where(*here)).scalar_one())


def _prepare(connection: Connection, turns: tuple[Turn, ...]) -> None:
    """Store what turns refer to.

    Raises:
        BadInput: a turn has an evaluation but no kernel.
    """
    if any(turn.evaluation and not turn.kernel for turn in turns):
        raise BadInput("A turn has an evaluation but no kernel that it could be about.")
    kernels = [turn.kernel for turn in turns if turn.kernel]
    add_kernels(connection, kernels)
    lock_kernels(connection, {kernel.hash for kernel in kernels})
    facts.add_environments(connection, [turn.evaluation.environment for turn in turns if turn.evaluation])


def _next_number(connection: Connection, run_id: int, problem_hash: str) -> int:
    if connection.dialect.name == "postgresql":
        runs = table(RunRow).c
        connection.execute(select(runs.id).where(runs.id == run_id).with_for_update(key_share=True))
    trajectories = table(TrajectoryRow).c
    newest = select(func.max(trajectories.number)).where(
        trajectories.run_id == run_id, trajectories.problem_hash == problem_hash
    )
    return int(connection.scalar(newest) or 0) + 1


def _insert(connection: Connection, row: Any, **values: Any) -> int:
    target = table(row)
    return int(connection.execute(insert(target).values(**values).returning(target.c.id)).scalar_one())


def _columns(trajectory_id: int, turn: Turn, prompt_hash: str | None, completion_hash: str) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory_id,
        "number": turn.number,
        "prompt_hash": prompt_hash,
        "completion_hash": completion_hash,
        "kernel_hash": turn.kernel.hash if turn.kernel else None,
        "kernel_name": turn.kernel.name if turn.kernel else None,
        "prompt_ids": turn.prompt_ids,
        "output_ids": turn.output_ids,
        "logprobs": turn.logprobs,
        "finish_reason": turn.finish_reason,
        "policy_version": turn.policy_version,
    }


def _add_messages(connection: Connection, turns: tuple[Turn, ...]) -> list[tuple[str | None, str]]:
    """Store the messages that are not there yet; return the hashes of each turn's last prompt and answer."""
    rows: dict[str, dict[str, str | None]] = {}
    tips = []
    for turn in turns:
        before: str | None = None
        tip: str | None = None
        for message in (*turn.prompt, Message(role="assistant", content=turn.completion)):
            before, tip = tip, message.hash(tip or "")
            rows[tip] = {
                "hash": tip,
                "parent_hash": before,
                "role": message.role,
                "content": message.content,
            }
        tips.append((before, str(tip)))
    if rows:
        # In this order, not by hash: a parent must be there before its child.
        statement: Insert = insert_new(connection, MessageRow)
        connection.execute(statement, list(rows.values()))
    return tips


def _link(connection: Connection, trajectory_id: int, turn_id: int, turn: Turn) -> None:
    """Tie the turn to the row that the persister wrote for these very facts, or write them."""
    kernel, evaluation = turn.kernel, turn.evaluation
    if kernel is None or evaluation is None:
        return
    evaluations, trajectories = table(EvaluationRow), table(TrajectoryRow)
    run_id, problem_hash = connection.execute(
        select(trajectories.c.run_id, trajectories.c.problem_hash).where(trajectories.c.id == trajectory_id)
    ).one()
    same = (
        select(func.min(evaluations.c.id))
        .where(
            evaluations.c.turn_id.is_(None),
            evaluations.c.document_hash == facts.document_hash(evaluation),
            evaluations.c.kernel_hash == kernel.hash,
            evaluations.c.problem_hash == problem_hash,
        )
        .scalar_subquery()
    )
    link = {"turn_id": turn_id, "run_id": func.coalesce(evaluations.c.run_id, run_id)}
    if connection.execute(update(evaluations).where(evaluations.c.id == same).values(**link)).rowcount == 1:
        return
    added = _insert(
        connection,
        EvaluationRow,
        problem_hash=problem_hash,
        kernel_hash=kernel.hash,
        kernel_name=kernel.name,
        run_id=run_id,
        turn_id=turn_id,
        attempt=1,
        finished_at=datetime.now(UTC),
        **facts.columns(evaluation),
    )
    facts.add_details(connection, added, evaluation)


def _read_turns(connection: Connection, trajectory_id: int, *, revised: bool) -> Iterator[Turn]:
    turns, kernels = table(TurnRow), table(KernelRow)
    rows = connection.execute(
        select(turns, kernels.c.source)
        .outerjoin(kernels, kernels.c.hash == turns.c.kernel_hash)
        .where(turns.c.trajectory_id == trajectory_id)
        .order_by(turns.c.number)
    ).all()
    evaluations = _read_evaluations(connection, [row.id for row in rows], revised=revised)
    messages = _read_messages(connection, {row.completion_hash for row in rows})
    for row in rows:
        yield Turn(
            number=row.number,
            prompt=tuple(_history(messages, row.prompt_hash)),
            completion=messages[row.completion_hash].content,
            kernel=None if row.kernel_hash is None else Kernel(source=row.source, name=row.kernel_name),
            evaluation=evaluations.get(row.id),
            prompt_ids=row.prompt_ids,
            output_ids=row.output_ids,
            logprobs=row.logprobs,
            finish_reason=row.finish_reason,
            policy_version=row.policy_version,
        )


def _read_evaluations(connection: Connection, turn_ids: list[int], *, revised: bool) -> dict[int, Evaluation]:
    """The evaluation of each turn; of several, the first."""
    evaluations = table(EvaluationRow).c
    rows = connection.execute(
        select(evaluations.id, evaluations.turn_id, evaluations.document)
        .where(evaluations.turn_id.in_(turn_ids))
        .order_by(evaluations.id.desc())
    ).all()
    found = {row.turn_id: (row.id, facts.load(row.document)) for row in rows}
    later = verdict.latest(connection, [identity for identity, _ in found.values()]) if revised else {}
    return {
        turn_id: evaluation.revised(later[identity]) if identity in later else evaluation
        for turn_id, (identity, evaluation) in found.items()
    }


def _read_messages(connection: Connection, tips: set[str]) -> "dict[str, ResultRow[Any]]":
    """The messages of these hashes and all before them."""
    messages = table(MessageRow)
    chain = select(messages).where(messages.c.hash.in_(tips)).cte("chain", recursive=True)
    chain = chain.union(select(messages).join(chain, messages.c.hash == chain.c.parent_hash))
    return {row.hash: row for row in connection.execute(select(chain))}


def _history(messages: "dict[str, ResultRow[Any]]", tip: str | None) -> list[Message]:
    history: list[Message] = []
    while tip is not None:
        row = messages[tip]
        history.append(Message(role=row.role, content=row.content))
        tip = row.parent_hash
    return history[::-1]
