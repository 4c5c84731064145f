"""`drkq db backup` and `drkq db restore`."""

from pathlib import Path

import click

from drkernel_q.cli.output import emit_json, progress, say

_FILE = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="The rows of each table as one JSON document.")


@click.command()
@_FILE
@_JSON
def backup(file: Path, as_json: bool) -> None:
    """Write the whole store to a new SQLite file, as it is at one moment; nobody waits for it.

    \b
    Examples:
      drkq db backup /backup/drkq-2026-11-30.sqlite
      DRKQ_STORE_URL=postgresql+psycopg://drkq@db/drkq drkq db backup drkq.sqlite
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store
    from drkernel_q.store.backup import back_up

    with progress("Copying"), Store.open(load_settings().store) as store:
        _tell(back_up(store, file), as_json, f"written to {file}")


@click.command()
@_FILE
@_JSON
def restore(file: Path, as_json: bool) -> None:
    """Fill an empty store, in SQLite or PostgreSQL, with a backup of this drkq or an earlier one.

    \b
    Examples:
      drkq db restore /backup/drkq-2026-11-30.sqlite
      DRKQ_STORE_URL=postgresql+psycopg://drkq@db/drkq drkq db restore drkq.sqlite
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store
    from drkernel_q.store.backup import restore as fill

    with progress("Copying"), Store.open(load_settings().store) as store:
        _tell(fill(file, store), as_json, f"restored into {store.path or store.public_url}")


def _tell(rows: dict[str, int], as_json: bool, done: str) -> None:
    if as_json:
        emit_json(rows)
    say(f"{sum(rows.values())} rows {done}: {rows.get('evaluations', 0)} evaluations, {rows.get('turns', 0)} turns.")
