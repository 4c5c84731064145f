"""The schema's revision: what the database has, what this drkq wants, and how one becomes the other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, func, inspect, select, text

from drkernel_q.errors import BadInput, NoStore, OutdatedStore
from drkernel_q.store.engine import explained, migrator, sqlite_file

if TYPE_CHECKING:  # Alembic takes a tenth of a second to import, and nearly every store is up to date
    from alembic.config import Config

PACKAGE = Path(__file__).parents[1]
#: Key of PostgreSQL's advisory lock around migrations: "drkq" in ASCII.
_LOCK_KEY = 0x64726B71
#: Where Alembic keeps the revision.
_VERSION_TABLE = "alembic_version"


def scripts() -> Path:
    """Folder of the migrations: inside the installed package, beside it in a checkout."""
    inside = PACKAGE / "migrations"
    return inside if inside.is_dir() else PACKAGE.parent / "migrations"


def config(connection: Connection | None = None) -> "Config":
    """Configure Alembic for the store's migrations, over `connection` if there is one."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def revisions() -> list[str]:
    """Revisions that this drkq knows, the oldest first; a migration's file is named by its own."""
    return sorted(path.name.partition("_")[0] for path in (scripts() / "versions").glob("[0-9]*.py"))


def head() -> str:
    """Revision that this drkq works with."""
    return revisions()[-1]


def revision(connection: Connection) -> str | None:
    """Revision of the database; None when it has no tables of ours."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found: str | None = connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))  # noqa: S608 - our own
    return found


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
            if found is not None and found not in revisions():
                raise OutdatedStore("The store was made by a newer drkq; upgrade drkq on this machine.")
            from alembic import command

            command.upgrade(config(connection), "head")
            check_references(connection)
    finally:
        engine.dispose()


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
