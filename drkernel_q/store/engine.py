"""Engines for a store's URL: one that writes, one that cannot, and one that migrates.

SQLite: WAL, so that readers and the one writer do not wait for each other, and `BEGIN IMMEDIATE` for every
write, since a read that turns into a write loses updates without an error.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from drkernel_q.errors import BadInput, BadSettings, DrkqError, MissingExtra, NoStore, OutdatedStore

#: How long a SQLite writer waits for another one; batches take milliseconds.
BUSY_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10

_SQLITE_ERROR = 1
_SQLITE_READONLY = 8
#: SQLite's primary result codes that speak about the data: constraint, mismatch, too big, range.
_SQLITE_DATA = frozenset({18, 19, 20, 25})
#: PostgreSQL's classes of states that speak about the server: connection, resources, operator, authorization,
#: catalog, rollback (a deadlock), not in the prerequisite state.
_POSTGRES_SERVER = frozenset({"08", "53", "57", "58", "28", "3D", "40", "55", "XX"})
_POSTGRES_UNDEFINED = frozenset({"42P01", "42703"})


def parse(url: str) -> URL:
    """Read the URL of a store.

    Raises:
        BadSettings: it is none, or names no database that drkq can use.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise BadSettings("The store URL is no URL; write sqlite:///FILE or postgresql+psycopg://...") from error
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {"sqlite", "postgresql+psycopg"}:
        raise BadSettings(f"drkq keeps its store in SQLite or PostgreSQL, not `{parsed.drivername}`.")
    if parsed.drivername == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise BadSettings("The store needs a file: sqlite:///FILE.")
    return parsed


def sqlite_file(url: URL) -> Path | None:
    """Path of the SQLite file, absolute; None for PostgreSQL."""
    return Path(url.database or "").absolute() if url.drivername == "sqlite" else None


def public(url: URL) -> str:
    """The URL as it may be shown and copied: without the password, wherever it stood."""
    bare = url._replace(password=None).difference_update_query(["password"])
    return bare.render_as_string(hide_password=False)


def writer(url: URL) -> Engine:
    """Engine of the one who writes."""
    path = sqlite_file(url)
    if path is None:
        return _postgres(url, {})
    return _sqlite(path, "rwc", ["foreign_keys = ON", "synchronous = NORMAL"], begin="BEGIN IMMEDIATE")


def reader(url: URL) -> Engine:
    """Engine that sees one state for a whole transaction and can change nothing."""
    path = sqlite_file(url)
    if path is None:
        return _postgres(url, {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True})
    return _sqlite(path, "ro", ["query_only = ON"], begin="BEGIN")


def migrator(url: URL) -> Engine:
    """Engine for migrations: on SQLite it rebuilds tables, which live foreign keys forbid."""
    path = sqlite_file(url)
    if path is None:
        return _postgres(url, {})
    return _sqlite(path, "rwc", ["journal_mode = WAL", "foreign_keys = OFF"], begin="BEGIN IMMEDIATE")


@contextmanager
def explained(url: URL, *, reading: bool = False) -> Iterator[None]:
    """Turn what a database driver raises within the block into an error that a person can act on.

    Raises:
        NoStore: the database does not answer, is locked for too long, or has no room.
        OutdatedStore: a table or column is missing.
        BadInput: the database refuses the data, or the statement.
    """
    try:
        yield
    except PoolTimeout as error:
        raise NoStore(f"The store {public(url)} has no free connection.") from error
    except DBAPIError as error:
        raise _explain(error, url, reading=reading) from (error.orig or error)
    except StatementError as error:
        raise BadInput(f"The store cannot hold this: {_first_line(error.orig or error)}.") from (error.orig or error)
    except OverflowError as error:
        raise BadInput(f"The store cannot hold this: {_first_line(error)}.") from error


def _explain(error: DBAPIError, url: URL, *, reading: bool) -> DrkqError:
    original = error.orig
    reason = _first_line(original or error)
    unreachable = NoStore(f"The store {public(url)} cannot be used: {reason}.")
    refused = BadInput(f"The store refuses this: {reason}.")
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", _SQLITE_ERROR) & 0xFF
        if code == _SQLITE_ERROR:
            return OutdatedStore() if reason.startswith("no such") and not reading else refused
        return refused if code in _SQLITE_DATA or (reading and code == _SQLITE_READONLY) else unreachable
    state = getattr(original, "sqlstate", None)
    if state in _POSTGRES_UNDEFINED and not reading:
        return OutdatedStore()
    if state is None:
        gone = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        return unreachable if gone else refused
    return unreachable if state[:2] in _POSTGRES_SERVER else refused


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(". ")


def _postgres(url: URL, options: dict[str, Any]) -> Engine:
    # For questions about a million turns: to compile them costs more than it saves, and their joins fit into memory.
    ours = {"connect_timeout": CONNECT_TIMEOUT_S, "options": "-c jit=off -c work_mem=64MB"}
    arguments = {name: value for name, value in ours.items() if name not in url.query}
    try:
        engine = create_engine(url, pool_pre_ping=True, connect_args=arguments, hide_parameters=True)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise MissingExtra("PostgreSQL needs `pip install 'drkq[postgres]'`.") from error
    return engine.execution_options(**options)


def _sqlite(path: Path, mode: str, pragmas: list[str], *, begin: str) -> Engine:
    engine = create_engine(
        "sqlite://", creator=_connector(path, mode, pragmas), poolclass=QueuePool, hide_parameters=True
    )

    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", start)
    return engine


def _connector(path: Path, mode: str, pragmas: list[str]) -> Callable[[], sqlite3.Connection]:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            # The driver must not begin transactions of its own kind; `begin` above does.
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
            # ATTACH would open another file, and that one to write.
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.create_function("split_part", 3, _split_part, deterministic=True)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    return connect


def _split_part(text: str | None, separator: str, number: int) -> str | None:
    """What PostgreSQL's function of this name does, for positive numbers."""
    if text is None:
        return None
    parts = text.split(separator)
    return parts[number - 1] if number <= len(parts) else ""
