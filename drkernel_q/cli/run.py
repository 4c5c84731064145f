"""`drkq run`: what runs there are, what became of their turns, and how two of them differ."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from drkernel_q.cli.output import emit_csv, emit_json, emit_table

if TYPE_CHECKING:
    from drkernel_q.store import Store
    from drkernel_q.store.query import Rows

Command = Callable[..., None]

_json = click.option("--json", "form", flag_value="json", help="One JSON document.")
_csv = click.option("--csv", "form", flag_value="csv", help="A header and rows as CSV.")


@click.group()
def command() -> None:
    """List, show and compare runs, down to the diff of one turn's kernel to the one before.

    \b
    Examples:
      drkq run list --kind stts
      drkq run show mine
      drkq run show mine --problem softmax --turn 3 --diff
      drkq run compare before after
    """  # noqa: D301 - click wants the backspace character itself


@command.command("list")
@click.option("--kind", metavar="KIND", help="Only runs of this kind: eval, stts, bench, collect, train ...")
@click.option("--like", metavar="PATTERN", help="Only names like this, with % for anything.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Runs at most.")
@_json
@_csv
def list_runs(kind: str | None, like: str | None, limit: int, form: str | None) -> None:
    """List runs, newest first.

    \b
    Examples:
      drkq run list
      drkq run list --kind train --like 'small-%' --json
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.store.query import ask

    with _store() as store, ask(store, "runs", {"kind": kind, "like": like, "limit": limit}) as answer:
        _emit(answer, form)


@command.command()
@click.argument("run")
@click.option("--problem", metavar="NAME", help="Only this problem.")
@click.option("--trajectory", type=click.IntRange(1), metavar="N", help="Only the trajectory of this number.")
@click.option("--turn", type=click.IntRange(1), metavar="N", help="One turn, whole: kernel, verdict and feedback.")
@click.option("--diff", is_flag=True, help="With --turn: the kernel as a diff to that of the turn before.")
@click.option("--prompt", is_flag=True, help="With --turn: what the model was shown, too.")
@click.option("--turns", "listing", is_flag=True, help="List turns, not trajectories; so does any filter below.")
@click.option("--outcome", metavar="NAME", help="Only turns with this outcome, such as correct.")
@click.option("--integrity", metavar="NAME", help="Only turns with this verdict, such as rejected.")
@click.option("--faster-than", type=float, metavar="P", help="Only turns with at least this speedup.")
@click.option("--lazier-than", type=float, metavar="R", help="Only turns with a profile ratio below this.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Rows at most.")
@_json
@_csv
def show(run: str, form: str | None, **options: Any) -> None:
    """Show a run: its rates and trajectories, its turns, or one turn whole.

    \b
    Examples:
      drkq run show mine
      drkq run show mine --problem softmax --turns
      drkq run show mine --integrity rejected --json
      drkq run show mine --problem softmax --trajectory 1 --turn 3 --diff
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import turns

    if options["turn"] is None and (options["diff"] or options["prompt"]):
        raise click.UsageError("--diff and --prompt are about one turn; name it by --turn N.")
    filters = {name: options[name] for name in turns.FILTERS if options[name] is not None}
    with _store() as store:
        if options["turn"] is not None:
            turns.show_turn(store, run, options, as_json=form == "json")
        elif options["listing"] or filters or options["trajectory"] is not None:
            _ask(store, "turns", {"run": run, **filters, **_place(options)}, form)
        elif form is not None:
            _ask(store, "trajectories", {"run": run, **_place(options)}, form)
        else:
            turns.show_run(store, run)
            _ask(store, "trajectories", {"run": run, **_place(options)}, form)


@command.command()
@click.argument("run")
@click.argument("other")
@_json
@_csv
def compare(run: str, other: str, form: str | None) -> None:
    """Compare the best honest kernels of two runs, problem by problem.

    OTHER is faster or slower where the 95 % intervals do not meet, or where only one of the two has a kernel. Speedups
    of different kinds of device stand in different rows.

    \b
    Examples:
      drkq run compare before after
      drkq run compare before after --csv > changes.csv
    """  # noqa: D301 - click wants the backspace character itself
    with _store() as store:
        _ask(store, "compare", {"run": run, "other": other}, form)


@command.command()
@click.argument("run")
@click.argument("other")
@click.option("--problem", metavar="NAME", help="Only this problem.")
def diff(run: str, other: str, problem: str | None) -> None:
    """Show how two runs differ: in their settings, and in the best kernel of each problem.

    \b
    Examples:
      drkq run diff before after
      drkq run diff before after --problem softmax | less -R
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import turns

    with _store() as store:
        turns.show_difference(store, run, other, problem)


@contextmanager
def _store() -> "Iterator[Store]":
    # Imported here: SQL takes longer to import than help may take to appear.
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store

    with Store.open(load_settings().store) as store:
        store.check()
        yield store


def _place(options: dict[str, Any]) -> dict[str, Any]:
    names = ("problem", "limit") if options["trajectory"] is None else ("problem", "trajectory", "limit")
    return {name: options[name] for name in names if options[name] is not None}


def _ask(store: "Store", name: str, values: dict[str, Any], form: str | None) -> None:
    from drkernel_q.store.query import ask

    with ask(store, name, values) as answer:
        _emit(answer, form)


def _emit(answer: "Rows", form: str | None) -> None:
    if form == "json":
        emit_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif form == "csv":
        emit_csv(answer.columns, answer.rows)
    else:
        emit_table(answer.columns, answer.rows)
