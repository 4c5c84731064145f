"""The store: where it is, what is in it, and how to get it out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkernel_q.cli.backup import backup, restore
from drkernel_q.cli.output import emit_csv, emit_json, emit_jsonl, emit_table, emit_text, say

if TYPE_CHECKING:
    from drkernel_q.store import Store
    from drkernel_q.store.query import Rows
    from drkernel_q.store.rejudge import Summary


@click.group()
def command() -> None:
    """The store: where it is, what is in it, and how to get it out.

    \b
    Examples:
      drkq db query --list
      drkq db query best-kernels
      drkq db query fast-p --param run=mine --param p=1.2
      drkq db query --sql "select outcome, count(*) from evaluations group by outcome"
      drkq db export --format parquet -o evaluations.parquet
      drkq db rejudge --dry-run
      drkq db backup drkq-backup.sqlite
      sqlite3 -readonly "$(drkq db path)"
    """  # noqa: D301 - click wants the backspace character itself


command.add_command(backup)
command.add_command(restore)


@command.command()
def path() -> None:
    """Print where the store is: a file, or a URL without its password.

    \b
    Examples:
      drkq db path
      datasette "$(drkq db path)"
    """  # noqa: D301 - click wants the backspace character itself
    with _store() as store:
        emit_text(str(store.path or store.public_url))


@command.command()
def upgrade() -> None:
    """Create the tables, or bring them up to date; safe at any time, and from several machines at once.

    \b
    Examples:
      drkq db upgrade
      DRKQ_STORE_URL=postgresql+psycopg://drkq@db/drkq drkq db upgrade
    """  # noqa: D301 - click wants the backspace character itself
    with _store() as store:
        before = store.status().revision
        store.upgrade()
        after = store.status().revision
    was = "empty" if before is None else f"at revision {before}"
    say(f"The store was {was} and is at revision {after}.")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(as_json: bool) -> None:
    """Show the revision of the tables, how many rows they have, and the size of it all.

    \b
    Examples:
      drkq db status
      drkq db status --json
    """  # noqa: D301 - click wants the backspace character itself
    with _store() as store:
        found = store.status()
        where = str(store.path or store.public_url)
    if as_json:
        emit_json({"store": where, **found._asdict()})
        return
    emit_text(f"store     {where}")
    emit_text(f"revision  {found.revision or 'none; run `drkq db upgrade`'}")
    emit_text(f"head      {found.head}")
    emit_text(f"size      {found.size_bytes / 1e6:.1f} MB")
    if found.rows:
        emit_table(("table", "rows"), found.rows.items())


@command.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List the named queries and their parameters.")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter of the named query.")
@click.option("--sql", help="A SELECT of your own, over a connection that can change nothing.")
@click.option("--json", "form", flag_value="json", help="One JSON array of objects.")
@click.option("--jsonl", "form", flag_value="jsonl", help="One JSON object a line.")
@click.option("--csv", "form", flag_value="csv", help="Comma-separated values with a header.")
def query(name: str | None, listing: bool, params: tuple[str, ...], sql: str | None, form: str | None) -> None:
    """Ask the store a question by name, or in SQL.

    \b
    Examples:
      drkq db query --list
      drkq db query recent --param limit=5
      drkq db query rates --param run=mine --json
      drkq db query --sql "select name, source_bytes from kernels" --csv
    """  # noqa: D301 - click wants the backspace character itself
    if sum([name is not None, listing, sql is not None]) != 1:
        raise click.UsageError("Give the name of a query, or --list, or --sql.")
    if params and name is None:
        raise click.UsageError("--param goes with the name of a query.")
    if listing:
        _list_queries()
        return
    from drkernel_q.store.query import ask, ask_sql

    with _ready_store() as store:
        asked = ask_sql(store, sql) if sql is not None else ask(store, str(name), _values(params))
        with asked as answer:
            _emit(answer, form)


@command.command()
@click.option("--format", "form", type=click.Choice(["jsonl", "parquet", "csv"]), required=True, help="File format.")
@click.option(
    "--table",
    "name",
    type=click.Choice(["evaluations", "trajectories", "kernels", "facts"]),
    default="evaluations",
    show_default=True,
    help="What to export.",
)
@click.option("--run", help="Only what belongs to the run of this name.")
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="File to write; - is stdout.")
def export(form: str, name: str, run: str | None, target: str) -> None:
    """Write evaluations, trajectories or kernels to a file; facts are evaluations that `drkq db import` reads.

    \b
    Examples:
      drkq db export --format parquet -o evaluations.parquet
      drkq db export --format jsonl --table trajectories --run mine -o rollouts.jsonl
      drkq db export --format csv -o - | head
    """  # noqa: D301 - click wants the backspace character itself
    if target == "-" and form == "parquet":
        raise click.UsageError("Parquet needs a file; stdout takes jsonl and csv.")
    from drkernel_q.store.dataset import DATASETS
    from drkernel_q.store.export import flat, write_file

    with _ready_store() as store:
        dataset = DATASETS[name]
        if target != "-":
            write_file(store, name, form, Path(target), run)
        elif form == "csv":
            emit_csv(dataset.schema.names, flat(dataset.schema, dataset.rows(store, run)))
        else:
            emit_jsonl(dataset.documents(store, run))


@command.command()
def datasette() -> None:
    """Print a configuration for Datasette: every named query as a form, and facets for the tables.

    \b
    Examples:
      drkq db datasette > drkq.json
      datasette "$(drkq db path)" --metadata drkq.json
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.errors import BadInput
    from drkernel_q.store.datasette import configuration

    with _ready_store() as store:
        if store.path is None:
            raise BadInput("Datasette reads SQLite; this store is in PostgreSQL.")
        emit_json(configuration(store.path.stem))


@command.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def import_file(file: Path, as_json: bool) -> None:
    """Read facts that were measured elsewhere, on the device that each of them names; twice is once.

    They answer whoever asks for the same evaluation on such a device. Where none is at hand, name the kind of device
    by the setting `recorded` (DRKQ_RECORDED): then they answer on every device, and say where they are from.

    \b
    Examples:
      drkq db export --format parquet --table facts --run curriculum-facts -o facts.parquet
      drkq db import facts.parquet
      DRKQ_RECORDED='sm_90/NVIDIA H200' drkq eval kernel.py --problem softmax --device cpu
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.store.fact_file import import_facts

    with _store() as store:
        store.upgrade()
        done = import_facts(store, file)
    if as_json:
        emit_json(done._asdict())
        return
    kinds = ", ".join(done.device_kinds) or "no device"
    say(f"{done.added} evaluations added, {done.known} were there already; measured on {kinds}.")


@command.command()
@click.option("--run", help="Only evaluations of the run of this name.")
@click.option("--since", type=click.DateTime(), metavar="TIME", help="Only what finished at this time (UTC) or later.")
@click.option(
    "--rules",
    type=click.Choice(["current"]),
    default="current",
    show_default=True,
    expose_value=False,
    help="Version of the rules: those of this drkq.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def rejudge(run: str | None, since: datetime | None, dry_run: bool, as_json: bool) -> None:
    """Apply the rules of this drkq to the facts of evaluations that others judged; no device is needed.

    Integrity, evidence and speedups are decided again. Nothing is overwritten: queries and exports show the latest
    verdict, and the evaluation keeps the one that its judge gave.

    \b
    Examples:
      drkq db rejudge --dry-run
      drkq db rejudge --run mine
      drkq db rejudge --since 2026-11-01 --json
      drkq db query revised
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.store.rejudge import rejudge as judge_again

    moment = since.replace(tzinfo=UTC) if since else None
    with _ready_store() as store:
        summary = judge_again(store, run=run, since=moment, dry_run=dry_run)
    changes = [change._asdict() | {"evaluations": count} for change, count in summary.changes.most_common()]
    if as_json:
        emit_json(vars(summary) | {"changes": changes, "dry_run": dry_run})
        return
    if changes:
        emit_table(("from", "to", "codes", "evaluations"), map(_change_cells, changes))
    for text in _summary_lines(summary):
        say(text)


def _change_cells(change: Mapping[str, Any]) -> tuple[str, str, str, int]:
    codes = [f"+{code}" for code in change["gained"]] + [f"-{code}" for code in change["lost"]]
    return change["before"].value, change["after"].value, " ".join(codes), change["evaluations"]


def _summary_lines(summary: "Summary") -> Iterator[str]:
    judged = f"{summary.judged} of {summary.examined} evaluations judged again"
    yield f"Rules {summary.rules_version}: {judged}, {sum(summary.changes.values())} verdicts changed."
    if summary.speedups_changed:
        most = f"{summary.largest_speedup_change:.1%}"
        yield f"{summary.speedups_changed} speedups changed, by {most} at most."
    if summary.without_raw_times:
        yield f"{summary.without_raw_times} kept their speedup: its raw times were not kept."
    if summary.current:
        yield f"{summary.current} stand under these rules already."
    if summary.lacking:
        yield f"{summary.lacking} keep their verdict: their facts do not suffice for another."


@contextmanager
def _store() -> Iterator["Store"]:
    # Imported here: SQL takes longer to import than help may take to appear.
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store

    with Store.open(load_settings().store) as store:
        yield store


@contextmanager
def _ready_store() -> Iterator["Store"]:
    with _store() as store:
        store.check()
        yield store


def _list_queries() -> None:
    from drkernel_q.store.query import QUERIES

    rows = []
    for each in QUERIES.values():
        takes = ", ".join(
            name if parameter.required else f"{name}={'any' if parameter.default is None else parameter.default}"
            for name, parameter in each.parameters.items()
        )
        rows.append((each.name, takes, each.sentence))
    emit_table(("name", "parameters", "answers"), rows)


def _values(params: tuple[str, ...]) -> dict[str, str | int | float | None]:
    values: dict[str, str | int | float | None] = {}
    for param in params:
        key, separator, value = param.partition("=")
        if not separator:
            raise click.UsageError(f"--param takes KEY=VALUE, not {param!r}.")
        values[key] = value
    return values


def _emit(answer: "Rows", form: str | None) -> None:
    documents = (dict(zip(answer.columns, row, strict=True)) for row in answer.rows)
    if form == "json":
        emit_json(list(documents))
    elif form == "jsonl":
        emit_jsonl(documents)
    elif form == "csv":
        emit_csv(answer.columns, answer.rows)
    else:
        emit_table(answer.columns, answer.rows)
