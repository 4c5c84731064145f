"""Backups: the whole store as one SQLite file, whichever database it is in, and back into either.

A backup sees one state, and keeps nobody waiting: workers, clients and the persister go on. What it restores into is
empty, so nothing is ever overwritten, and moving a store from SQLite to PostgreSQL is a backup and a restore.
"""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    MetaData,
    Table,
    Text,
    cast,
    func,
    insert,
    select,
    text,
    type_coerce,
)
from sqlalchemy.types import TypeDecorator, UserDefinedType

from drkernel_q.errors import BadInput, NoStore, OutdatedStore
from drkernel_q.store import engine, schema
from drkernel_q.store.column import SafeJson, UtcDateTime
from drkernel_q.store.store import Store
from drkernel_q.store.table import NAMING, Row

#: Rows of one statement; a turn may be a megabyte of token ids.
_BATCH = 200
#: A message refers to an earlier one, and rows come in no order; the reference is checked when all are there.
_LATE_KEY = ("messages", "fk_messages_parent_hash_messages", "parent_hash", "messages(hash)")


def back_up(store: Store, target: Path) -> dict[str, int]:
    """Write the store to a new file; return the rows of each table.

    Raises:
        BadInput: there is such a file already.
        NoStore: the store cannot be read, or the file not be written.
        OutdatedStore: the store is in PostgreSQL and of another revision; back it up with the drkq that it belongs to.
    """
    if target.exists():
        raise BadInput(f"{target} is there already; a backup is never written over another.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
            whole = Path(folder) / "whole.sqlite"
            _snapshot(store, whole, Path(folder))
            with Store.open(f"sqlite:///{whole}") as copy:
                rows = copy.status().rows
            with whole.open("rb") as file:
                os.fsync(file.fileno())
            whole.rename(target)
    except OSError as error:
        raise NoStore(f"The backup {target} cannot be written: {error.strerror}.") from error
    return rows


def restore(source: Path, store: Store) -> dict[str, int]:
    """Fill an empty store with a backup of this drkq or an earlier one; return the rows of each table.

    Raises:
        BadInput: the file is no backup, or the store is not empty.
        NoStore: the store cannot be written; then it is as empty as before.
        OutdatedStore: the backup is of a newer drkq.
    """
    if not source.is_file():
        raise BadInput(f"There is no backup {source}.")
    with tempfile.TemporaryDirectory(prefix="drkq-restore-") as folder:
        copied = shutil.copy(source, Path(folder) / "backup.sqlite")  # brought up to date, which the backup is not
        with Store.open(f"sqlite:///{copied}") as backup:
            try:
                known = backup.status().revision is not None
            except NoStore as error:
                raise BadInput(f"{source} is no backup of drkq: {error}") from error
            if not known:
                raise BadInput(f"{source} is no backup of drkq: it has no tables of drkq.")
            backup.upgrade()
            if store.path is not None and not store.path.exists():
                rows = backup.status().rows
                _vacuum(Path(copied), store.path)
                store.upgrade()
                return rows
            store.upgrade()
            filled = {name: count for name, count in store.status().rows.items() if count}
            if filled:
                name, count = max(filled.items(), key=lambda each: each[1])
                raise BadInput(
                    f"The store {store.path or store.public_url} has {count} {name} already; restore into an empty "
                    "one, named by DRKQ_STORE_URL."
                )
            return _copy(backup, store)


def _snapshot(store: Store, whole: Path, folder: Path) -> None:
    if store.path is not None:
        if store.status().revision is None:
            raise OutdatedStore("The store has no tables yet, so there is nothing to back up.")
        _vacuum(store.path, whole)
        return
    store.check()
    with Store.open(f"sqlite:///{folder / 'rows.sqlite'}") as rows:
        rows.upgrade()
        _copy(store, rows)
    _vacuum(folder / "rows.sqlite", whole)


def _vacuum(source: Path, target: Path) -> None:
    """Copy a SQLite file as it is at one moment, without its write-ahead log and without gaps."""
    try:
        # A connection of its own: those of a store may not attach files, and this does so inside.
        with closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=60)) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        raise NoStore(f"The store {source} cannot be copied: {error}.") from error
    target.chmod(0o600)


def _copy(source: Store, target: Store) -> dict[str, int]:
    """Copy every row from one database into another, empty one, in one transaction on each side."""
    writer = engine.migrator(target.url)
    counts: dict[str, int] = {}
    try:
        with source.reading() as there, engine.explained(target.url), writer.begin() as here:
            postgres = here.dialect.name == "postgresql"
            if postgres:
                here.execute(text(f"ALTER TABLE {_LATE_KEY[0]} DROP CONSTRAINT {_LATE_KEY[1]}"))
            for table in Row.metadata.sorted_tables:
                counts[table.name] = _copy_table(table, there, here)
            if postgres:
                table_name, name, column, referred = _LATE_KEY
                key = f"ADD CONSTRAINT {name} FOREIGN KEY ({column}) REFERENCES {referred}"
                here.execute(text(f"ALTER TABLE {table_name} {key}"))
                _continue_counting(here)
            else:
                schema.check_references(here)
    finally:
        writer.dispose()
    return counts


def _copy_table(table: Table, there: Connection, here: Connection) -> int:
    count = 0
    found = there.execution_options(yield_per=_BATCH).execute(select(_plain(table, there)))
    into = insert(_plain(table, here))
    for batch in found.mappings().partitions():
        here.execute(into, [dict(row) for row in batch])
        count += len(batch)
    return count


class _JsonbAsText(UserDefinedType[str]):
    """PostgreSQL's JSONB, read and written as text."""

    def get_col_spec(self, **_: Any) -> str:
        """Name it to the database."""
        return "JSONB"

    def bind_expression(self, bindvalue: BindParameter[str]) -> ColumnElement[str]:
        """Have the database read the text."""
        return cast(type_coerce(bindvalue, Text()), self)

    def column_expression(self, column: ColumnElement[str]) -> ColumnElement[str]:
        """Have the database write it as text."""
        return cast(column, Text)


def _plain(table: Table, connection: Connection) -> Table:
    """Describe a table whose columns are taken as they lie: texts escaped, numbers packed, documents as text."""
    json = _JsonbAsText() if connection.dialect.name == "postgresql" else Text()
    plain = table.to_metadata(MetaData(naming_convention=NAMING))
    for column in plain.columns:
        kind = column.type
        if isinstance(kind, SafeJson):
            column.type = json
        elif isinstance(kind, TypeDecorator) and not isinstance(kind, UtcDateTime):
            column.type = kind.impl_instance
    return plain


def _continue_counting(connection: Connection) -> None:
    """Have PostgreSQL give the next row an id that no restored row has."""
    for table in Row.metadata.sorted_tables:
        if "id" in table.c:
            highest = select(func.max(table.c.id)).scalar_subquery()
            sequence = func.pg_get_serial_sequence(table.name, "id")
            connection.execute(select(func.setval(sequence, func.coalesce(highest, 1), highest.is_not(None))))
