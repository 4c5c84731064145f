"""The store as the rest of drkq sees it: values in, values out, every error one that a person can act on."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from sqlalchemy import URL, Connection, Engine, func, select, text

from drkernel_q.artefact import Artefacts
from drkernel_q.audit import Audit
from drkernel_q.environment import Conditions
from drkernel_q.errors import NoStore, OutdatedStore
from drkernel_q.evaluation import Reply
from drkernel_q.lesson import Lesson
from drkernel_q.problem import Problem
from drkernel_q.request import Request
from drkernel_q.store import audit, engine, facts, lesson, record, rollout, schema
from drkernel_q.store.run import Run, find_run
from drkernel_q.store.table import ProblemRow, Row, RunRow, table
from drkernel_q.store.write import add_problems, insert_once
from drkernel_q.trajectory import Trajectory, Turn


class StoreStatus(NamedTuple):
    """What is in a store."""

    revision: str | None
    """Revision of the schema; None when there are no tables."""
    head: str
    """Revision that this drkq works with."""
    rows: dict[str, int]
    """Rows of each table; empty when the revision is another one."""
    size_bytes: int


class Store:
    """Everything that was learned, in SQLite or PostgreSQL; safe to share between threads, not across a fork.

    Opening connects to nothing. A new or outdated database must be brought up to date with `upgrade` first.
    """

    def __init__(self, url: URL) -> None:
        """Use `Store.open`."""
        self._url = url
        self._writer: Engine = engine.writer(url)
        self._reader: Engine = engine.reader(url)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the store at an SQLAlchemy URL; the folder of a SQLite file is made, for this user alone.

        Raises:
            BadSettings: it is no URL of SQLite or PostgreSQL.
            MissingExtra: the driver of PostgreSQL is not installed.
            NoStore: the folder cannot be made.
        """
        parsed = engine.parse(url)
        path = engine.sqlite_file(parsed)
        if path is not None:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise NoStore(f"The folder {path.parent} cannot be made: {error.strerror}.") from error
        return cls(parsed)

    def close(self) -> None:
        """Close every connection."""
        self._writer.dispose()
        self._reader.dispose()

    def __enter__(self) -> Self:
        """Use the store for the length of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return engine.sqlite_file(self._url)

    @property
    def url(self) -> URL:
        """The URL; holds the password, if there is one."""
        return self._url

    @property
    def public_url(self) -> str:
        """The URL without its password."""
        return engine.public(self._url)

    def upgrade(self) -> None:
        """Bring the schema up to date; see `drkernel_q.store.schema.upgrade`."""
        # Most commands find it so, and then wait for no writer.
        if self._revision() != schema.head():
            schema.upgrade(self._url)

    def check(self) -> None:
        """Make sure that the schema is the one that this drkq works with.

        Raises:
            OutdatedStore: it is another one, or there are no tables yet.
            NoStore: the database cannot be reached.
        """
        revision, head = self._revision(), schema.head()
        if revision is None:
            raise OutdatedStore("The store has no tables yet; run `drkq db upgrade`.")
        if revision != head:
            raise OutdatedStore(
                f"The store has schema revision {revision}, this drkq wants {head}; run `drkq db upgrade`."
            )

    def status(self) -> StoreStatus:
        """Count what is there."""
        revision, head = self._revision(), schema.head()
        if revision is None:
            return StoreStatus(revision=None, head=head, rows={}, size_bytes=0)
        with self.reading() as connection:
            rows = _count_rows(connection) if revision == head else {}
            return StoreStatus(revision=revision, head=head, rows=rows, size_bytes=self._size_bytes(connection))

    def add_run(self, name: str, *, kind: str, settings: Mapping[str, Any]) -> bool:
        """Announce a run; False when its name was announced before, and then nothing changes."""
        values = {"name": name, "kind": kind, "settings": dict(settings), "created_at": datetime.now(UTC)}
        runs = table(RunRow)
        with self.writing() as connection:
            if insert_once(connection, RunRow, values) is not None:
                return True
            # A run whose first evaluation came before its announcement has no settings yet.
            unannounced = runs.update().where(runs.c.name == name, runs.c.settings.is_(None))
            described = unannounced.values(kind=kind, settings=dict(settings))
            return connection.execute(described).rowcount == 1

    def run(self, name: str) -> Run | None:
        """Find what a run was announced as; None when there is none of this name."""
        with self.reading() as connection:
            return find_run(connection, name)

    def add_problem(self, problem: Problem) -> None:
        """Store a problem, which its trajectories need."""
        with self.writing() as connection:
            add_problems(connection, [problem])

    def problem(self, problem_hash: str) -> Problem | None:
        """Find a problem by its hash, under the first name that it came with."""
        problems = table(ProblemRow).c
        with self.reading() as connection:
            row = connection.execute(
                select(problems.name, problems.source).where(problems.hash == problem_hash)
            ).first()
        return None if row is None else Problem(name=row.name, source=row.source)

    def record(self, request: Request, reply: Reply) -> bool:
        """Record a reply to its request; False when it told nothing new.

        The first evaluation of a request stands, whatever comes later; a failure is kept as an attempt. Of audits the
        latest stands, and a failure to make one is not kept.

        Raises:
            BadInput: the two do not belong together, or cannot be stored.
            NoStore: the database cannot be reached, or is locked for too long; nothing was recorded.
        """
        return self.record_all([(request, reply)])[0]

    def record_all(self, pairs: Sequence[tuple[Request, Reply]]) -> list[bool]:
        """Record several replies in one transaction: all of them, or none and an error."""
        with self.writing() as connection:
            return record.record_all(connection, pairs)

    def find(self, request_id: str) -> Reply | None:
        """Find the reply to a request: its evaluation, or its latest failure; None when nothing is known."""
        with self.reading() as connection:
            return record.find(connection, request_id)

    def find_content(self, content_keys: Collection[str], since: datetime) -> Reply | None:
        """Find the latest evaluation with one of these content keys (`EvaluationRequest.content_key`).

        It finished at `since` or later, and another one would show the same; None when there is none.
        """
        with self.reading() as connection:
            return record.find_content(connection, content_keys, since)

    def conditions(self, device_kind: str) -> list[Conditions]:
        """Find under which conditions evaluations on a kind of device were made."""
        with self.reading() as connection:
            return facts.conditions(connection, device_kind)

    def artefacts(self, request_id: str) -> Artefacts | None:
        """Find the raw measurements behind the evaluation of a request; None when none were kept."""
        with self.reading() as connection:
            return facts.artefacts(connection, request_id)

    def audits(self, problem_hash: str) -> Mapping[str, Audit]:
        """Find the audits of a problem, by kind of device; those made by other rules of measuring do not count."""
        with self.reading() as connection:
            return audit.find(connection, problem_hash)

    def add_trajectory(self, run: str, trajectory: Trajectory) -> int:
        """Store a trajectory; return its number among those of its problem in this run, from 1.

        Raises:
            BadInput: its problem is not in the store (`add_problem`), or a turn has facts about no kernel.
        """
        with self.writing() as connection:
            return rollout.add(connection, run, trajectory)

    def open_trajectory(self, run: str, problem_hash: str, number: int) -> Trajectory:
        """Find the trajectory of this number, from 1, or begin it; return it with the turns stored so far.

        With `add_turn` this is how a rollout goes on where a killed one was: whatever is here is not sampled again.

        Raises:
            BadInput: its problem is not in the store (`add_problem`), or the number is below 1.
        """
        with self.writing() as connection:
            return rollout.open_(connection, run, problem_hash, number)

    def add_turn(self, run: str, problem_hash: str, number: int, turn: Turn) -> bool:
        """Store one turn of a trajectory; False when it has that turn already, and then the one that is there stands.

        Raises:
            BadInput: its problem is not in the store, or the turn has facts about no kernel.
        """
        with self.writing() as connection:
            return rollout.add_turn(connection, run, problem_hash, number, turn)

    def trajectories(self, run: str, *, revised: bool = False) -> Iterator[Trajectory]:
        """Read the trajectories of a run, oldest first, one at a time; see `drkernel_q.store.rollout.read`."""
        with self.reading() as connection:
            for _, _, _, trajectory in rollout.read(connection, run, revised=revised):
                yield trajectory

    def add_lessons(self, run: str, lessons: Sequence[Lesson]) -> None:
        """Keep what a training step made of turns of a run, in place of what an earlier try of the step made of them.

        Raises:
            BadInput: a turn is not in the store.
        """
        with self.writing() as connection:
            lesson.add(connection, run, lessons)

    def lessons(self, run: str, step: int | None = None) -> list[Lesson]:
        """Read what the training steps of a run, or one of them, made of its turns."""
        with self.reading() as connection:
            return lesson.read(connection, run, step)

    def trajectory(self, run: str, problem: str, number: int, *, revised: bool = False) -> Trajectory | None:
        """Read one trajectory by the name of its problem and its number; None when it is not there."""
        with self.reading() as connection:
            return rollout.read_one(connection, run, problem, number, revised=revised)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Connect for a block of reads that all see the same state; for `drkernel_q.store` itself."""
        with engine.explained(self._url, reading=True), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Connect for a block of writes that all happen or none; for `drkernel_q.store` itself."""
        with engine.explained(self._url), self._writer.begin() as connection:
            yield connection

    def _revision(self) -> str | None:
        if self.path is not None and not self.path.exists():
            return None
        with self.reading() as connection:
            return schema.revision(connection)

    def _size_bytes(self, connection: Connection) -> int:
        if self.path is None:
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
        files = [self.path, self.path.with_name(f"{self.path.name}-wal")]
        return sum(file.stat().st_size for file in files if file.exists())


def _count_rows(connection: Connection) -> dict[str, int]:
    names = sorted(Row.metadata.tables)
    counts = {name: select(func.count()).select_from(Row.metadata.tables[name]).scalar_subquery() for name in names}
    row = connection.execute(select(*(count.label(name) for name, count in counts.items()))).one()
    return dict(zip(names, map(int, row), strict=True))
