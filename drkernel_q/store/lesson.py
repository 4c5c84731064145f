"""Lessons as rows: one a turn, the latest that a training step made of it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.dialects import postgresql, sqlite

from drkernel_q.errors import BadInput
from drkernel_q.lesson import Lesson
from drkernel_q.store.table import LessonRow, RunRow, TrajectoryRow, TurnRow, table

#: Fields of a lesson that say where its turn is; all others are columns.
_PLACE = frozenset({"problem_hash", "trajectory", "turn"})


def add(connection: Connection, run: str, lessons: Sequence[Lesson]) -> None:
    """Keep lessons, each in place of an earlier one about the same turn.

    Raises:
        BadInput: a turn is not in the store.
    """
    if not lessons:
        return
    known = _turn_ids(connection, run, {lesson.problem_hash for lesson in lessons})
    rows = []
    for lesson in lessons:
        place = (lesson.problem_hash, lesson.trajectory, lesson.turn)
        if place not in known:
            raise BadInput(f"Turn {place[2]} of trajectory {place[1]} for {place[0]} is not in the run `{run}`.")
        rows.append({"turn_id": known[place], **lesson.model_dump(exclude=set(_PLACE))})
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table(LessonRow))
    changed = {name: value for name, value in statement.excluded.items() if name != "turn_id"}
    connection.execute(statement.on_conflict_do_update(index_elements=["turn_id"], set_=changed), rows)


def read(connection: Connection, run: str, step: int | None = None) -> list[Lesson]:
    """Read the lessons of a run, or of one step of it, by step, problem, trajectory and turn."""
    lessons, turns, trajectories = table(LessonRow), table(TurnRow), table(TrajectoryRow)
    statement = _of_run(
        run,
        lessons,
        trajectories.c.problem_hash,
        trajectories.c.number.label("trajectory"),
        turns.c.number.label("turn"),
    ).join(lessons, lessons.c.turn_id == turns.c.id)
    if step is not None:
        statement = statement.where(lessons.c.step == step)
    place = (trajectories.c.problem_hash, trajectories.c.number, turns.c.number)
    rows = connection.execute(statement.order_by(lessons.c.step, *place)).mappings()
    return [Lesson.model_validate({name: row[name] for name in Lesson.model_fields}) for row in rows]


def _turn_ids(connection: Connection, run: str, problems: set[str]) -> dict[tuple[str, int, int], int]:
    turns, trajectories = table(TurnRow), table(TrajectoryRow)
    statement = _of_run(run, turns.c.id, turns.c.number.label("turn"), trajectories)
    rows = connection.execute(statement.where(trajectories.c.problem_hash.in_(problems)))
    return {(row.problem_hash, row.number, row.turn): row.id for row in rows}


def _of_run(run: str, *what: Any) -> "Select[Any]":
    """SELECT something of the turns of a run."""
    turns, trajectories, runs = table(TurnRow), table(TrajectoryRow), table(RunRow)
    return (
        select(*what)
        .select_from(turns)
        .join(trajectories, trajectories.c.id == turns.c.trajectory_id)
        .join(runs, runs.c.id == trajectories.c.run_id)
        .where(runs.c.name == run)
    )
