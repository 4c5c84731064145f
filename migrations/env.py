"""Alembic's entry: over the connection that `drkernel_q.store.schema` gives, or the store of the settings."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection
from sqlalchemy.types import TypeDecorator

from drkernel_q.settings import load_settings
from drkernel_q.store.column import SafeJson
from drkernel_q.store.engine import migrator, parse
from drkernel_q.store.table import Row


def render_plain(kind: str, item: Any, autogen: AutogenContext) -> str | Literal[False]:
    """Write our column types as the database knows them, so that old revisions need none of our code."""
    if kind != "type" or not isinstance(item, TypeDecorator):
        return False
    if isinstance(item, SafeJson):
        autogen.imports.add("from sqlalchemy.dialects import postgresql")
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    return f"sa.{item.impl!r}"


def migrate(connection: Connection) -> None:
    """Run the revisions over `connection`, within its transaction."""
    context.configure(
        connection=connection,
        target_metadata=Row.metadata,
        render_as_batch=True,
        compare_type=True,
        render_item=render_plain,
    )
    with context.begin_transaction():
        context.run_migrations()


def write_sql() -> None:
    """Write the revisions as SQL (`alembic upgrade --sql`) for whoever may not run them."""
    context.configure(
        url=parse(load_settings().store),
        target_metadata=Row.metadata,
        literal_binds=True,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if context.is_offline_mode():
    write_sql()
elif given is not None:
    migrate(given)
else:
    engine = migrator(parse(load_settings().store))
    with engine.begin() as own:
        migrate(own)
    engine.dispose()
