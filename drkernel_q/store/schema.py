"""The schema's revision: what the database has, what this drkq wants, and how one becomes the other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, func, select, text

from drkernel_q.errors import BadInput, NoStore, OutdatedStore
from drkernel_q.store.engine import explained, migrator, sqlite_file

PACKAGE = Path(__file__).parents[1]
#: Key of PostgreSQL's advisory lock around migrations: "drkq" in ASCII.
_LOCK_KEY = 0x64726B71


def scripts() -> Path:
    """Folder of the migrations: inside the installed package, beside it in a checkout."""
    inside = PACKAGE / "migrations"
    return inside if inside.is_dir() else PACKAGE.parent / "migrations"


def config(connection: Connection | None = None) -> Config:
    """Configure Alembic for the store's migrations, over `connection` if there is one."""
    settings = Config()
    settings.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def head() -> str:
    """Revision that this drkq works with."""
    newest = ScriptDirectory.from_config(config()).get_current_head()
    assert newest is not None
    return newest


def revision(connection: Connection) -> str | None:
    """Revision of the database; None when it has no tables of ours."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(url: URL) -> None:
    """Bring the database to `head`, creating it if need be; several processes may do this at once.

    Raises:
        NoStore: the database cannot be reached or created.
        OutdatedStore: the database is newer than this drkq.
    """
    engine = migrator(url)
    try:
        with _file_lock(url), explained(url), engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK_KEY)))
            found = revision(connection)
            if found == head():
                return
            if found is not None and not _known(found):
                raise OutdatedStore("The store was made by a newer drkq; upgrade drkq on this machine.")
            command.upgrade(config(connection), "head")
            check_references(connection)
    finally:
        engine.dispose()


def _known(found: str) -> bool:
    return any(script.revision == found for script in ScriptDirectory.from_config(config()).walk_revisions())


def check_references(connection: Connection) -> None:
    """Look for what SQLite did not check while its tables were rebuilt."""
    if connection.dialect.name != "sqlite":
        return
    broken = connection.execute(text("PRAGMA foreign_key_check")).first()
    if broken is not None:
        raise BadInput(f"The table {broken[0]} refers to rows that are missing in {broken[2]}; nothing changed.")


@contextmanager
def _file_lock(url: URL) -> Iterator[None]:
    """Hold the lock file beside a SQLite store: switching to WAL takes more than a transaction."""
    path = sqlite_file(url)
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise NoStore(f"The store {path} cannot be created: {error.strerror}.") from error
