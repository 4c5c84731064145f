"""`drkq problem`: what there is to solve."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from drkernel_q.cli.findings import stored_audits
from drkernel_q.cli.output import emit_json, emit_table, emit_text, say
from drkernel_q.errors import BadProblem, BadSettings
from drkernel_q.problem import (
    Problem,
    added_files,
    added_folder,
    builtin_files,
    find_problem,
    kernelbench_files,
    load_folder,
    load_problem,
    parse_override,
)
from drkernel_q.problem.suite import SUITES
from drkernel_q.settings import Settings, load_settings

COLUMNS = ("name", "level", "origin", "summary")

_path = click.Path(path_type=Path)
_kernelbench = click.option(
    "--kernelbench",
    metavar="DIR",
    type=_path,
    help="A checkout of KernelBench (also: DRKQ_KERNELBENCH).",
)


@click.group()
def command() -> None:
    """List, show and add the problems that kernels are judged on."""


@command.command("list")
@_kernelbench
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list.")
def list_problems(kernelbench: Path | None, as_json: bool) -> None:
    """List the built-in problems, those you added, and those of a KernelBench checkout.

    \b
    Examples:
      drkq problem list
      drkq problem list --kernelbench ~/KernelBench --json | jq -r '.[].name'
    """  # noqa: D301 - click wants the backspace character itself
    rows = list(_rows(load_settings(kernelbench=kernelbench)))
    if as_json:
        emit_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    else:
        emit_table(COLUMNS, rows)


@command.command()
@click.argument("name")
@_kernelbench
@click.option(
    "--set",
    "overrides",
    metavar="NAME=VALUE",
    multiple=True,
    help="Replace a constant of the module; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON document with constants, sizes and source.")
def show(name: str, kernelbench: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print the source of a problem, and on stderr the flags that audits have raised.

    NAME is a name of `drkq problem list`, `1/23` of KernelBench, a file, or FILE.parquet#ROW.

    \b
    Examples:
      drkq problem show softmax
      drkq problem show softmax --set batch_size=4 > small.py
      drkq problem show 1/23 --kernelbench ~/KernelBench --json | jq .constants
    """  # noqa: D301 - click wants the backspace character itself
    settings = load_settings(kernelbench=kernelbench)
    problem = find_problem(name, settings).resized(dict(map(parse_override, overrides)))
    audits = stored_audits(settings, [problem]).get(problem.hash, {})
    if as_json:
        flags = {kind: [flag.model_dump(mode="json") for flag in audit.flags] for kind, audit in audits.items()}
        emit_json(_document(problem) | {"flags": flags})
        return
    emit_text(problem.source.removesuffix("\n"))
    for kind, audit in audits.items():
        for flag in audit.flags:
            say(f"{kind}: {flag.code.value}: {flag.detail}")


@command.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_path)
@click.option("--force", is_flag=True, help="Replace added problems of the same name.")
def add(files: tuple[Path, ...], force: bool) -> None:
    """Check reference files, and keep copies that can be named without their path.

    FILE may be a folder. Nothing is kept unless all of it can be.

    \b
    Examples:
      drkq problem add my_softmax.py
      drkq eval kernel.py --problem my_softmax
    """  # noqa: D301 - click wants the backspace character itself
    settings = load_settings()
    chosen: dict[str, Problem] = {}
    for problem in _loaded(files):
        if not problem.name[0].isalnum():
            raise BadProblem(f"A problem's name starts with a letter or a digit; rename {problem.name}.py.")
        if chosen.setdefault(problem.name, problem).hash != problem.hash:
            raise BadProblem(f"Two different files are called {problem.name}.py; rename one.")
    if not force:
        _refuse_to_replace(chosen, added_files(settings))
    folder = added_folder(settings)
    try:
        _keep(folder, chosen.values())
    except OSError as error:
        raise BadSettings(f"{folder} (of the setting `data_dir`) cannot be written: {error.strerror}.") from None


@command.command()
@click.argument("names", metavar="[NAME|FILE|FOLDER]...", nargs=-1)
@click.option("--suite", "suites", multiple=True, type=click.Choice(SUITES), help="A whole set; repeatable.")
@click.option("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (also: DRKQ_DEVICE).")
@click.option("--compile", "compile", is_flag=True, help="Time torch.compile too, which takes long.")
@click.option("--force", is_flag=True, help="Audit what has been audited on this kind of device, too.")
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Replace a constant of each problem.")
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for one problem.",
)
@_kernelbench
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list with every fact.")
@click.option("-o", "--output", "target", metavar="FILE", type=_path, help="Write a Markdown table there, too.")
def audit(names: tuple[str, ...], suites: tuple[str, ...], **options: Any) -> None:
    """Measure what problems are worth as yardsticks: would zeros pass? does every input matter? how long is a call?

    Flags are kept in the store, and decide whether speed on a problem is rewarded. What is known there for this kind of
    device is not measured again. A problem that cannot be used is a result, not an error.

    \b
    Examples:
      drkq problem audit softmax my_problem.py
      drkq problem audit --suite builtin -o audit.md
      drkq problem audit --suite kernelbench/1 --kernelbench ~/KernelBench --device cuda:0 --compile --deadline 300
    """  # noqa: D301 - click wants the backspace character itself
    if not names and not suites:
        raise click.UsageError("Name problems, or a set of them by --suite.")
    from drkernel_q.cli import auditing

    raise SystemExit(asyncio.run(auditing.run(auditing.prepare(names, suites, options))))


@command.command("generate")
@click.option("--seed", type=int, default=0, show_default=True, help="Other problems for another seed.")
@click.option(
    "--problems", type=click.IntRange(1, 100_000), default=500, show_default=True, metavar="N", help="How many."
)
@click.option("--level", "levels", type=click.IntRange(1, 3), multiple=True, help="Only these; repeatable.")
@click.option("-o", "--output", "folder", metavar="DIR", type=_path, help="A new folder for the files.")
@click.option("--solutions", is_flag=True, help="Write the solutions of every quality, too.")
@click.option("--messages", metavar="FILE", type=_path, help="Write conversations to learn from, as JSON Lines.")
@click.option("--templates", default="compact", show_default=True, metavar="NAME|DIR", help="What is asked in them.")
@click.option("--climbs", is_flag=True, help="Conversations over several turns with feedback, too.")
@click.option("--script", metavar="FILE.py", type=_path, help="Write a script that climbs from bad to good solutions.")
@click.option(
    "--turns", type=click.IntRange(1, 9), default=5, show_default=True, metavar="T", help="Turns of a climb at most."
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON document of what there is.")
def generate_problems(levels: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """Make up problems, with solutions from lazy to fused, from wrong to a decoy; nothing is downloaded.

    Level 1 is chains of elementwise operators, level 2 reductions and normalisations of rows, level 3 products with
    what comes after them. The same seed gives the same set. One chain in ten is held out: no training problem of any
    seed has it, and nothing of it is in the messages.

    \b
    Examples:
      drkq problem generate --problems 500 -o generated --solutions
      drkq problem generate --seed 7 --level 1 --problems 2000 --messages train.jsonl --climbs --templates brief
      drkq eval generated/solutions/l1_0001_*/fused1.py --reference generated/problems/train/level1/l1_0001_*.py
      drkq problem generate --problems 40 -o generated --script climb.py
      drkq collect --model scripted:climb.py --problems generated/problems/train --run climb --preset small
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli import generating

    if options["folder"] is None and options["messages"] is None and options["script"] is None:
        raise click.UsageError("Name a folder by -o, or a file by --messages or --script.")
    order = generating.Order(levels=levels or (1, 2, 3), **options)
    generating.run(order, as_json=as_json)


def _rows(settings: Settings) -> Iterator[tuple[str, int | None, str, str]]:
    sources = [("added", added_files(settings)), ("built-in", builtin_files())]
    if settings.kernelbench is not None:
        sources.append(("KernelBench", kernelbench_files(settings.kernelbench)))
    for origin, files in sources:
        for name, path in files.items():
            folder = path.parent.name
            level = int(folder.removeprefix("level")) if folder.startswith("level") else None
            yield name, level, origin, _summary(path)


def _summary(path: Path) -> str:
    # One broken file must not hide the others.
    try:
        return load_problem(path).summary
    except BadProblem as error:
        return f"unusable: {error}"


def _document(problem: Problem) -> dict[str, object]:
    return {
        "name": problem.name,
        "hash": problem.hash,
        "summary": problem.summary,
        "constants": problem.constants,
        "cpu_sizes": problem.cpu_sizes,
        "source": problem.source,
    }


def _loaded(files: tuple[Path, ...]) -> Iterator[Problem]:
    for path in files:
        if path.is_dir():
            yield from load_folder(path)
        else:
            yield load_problem(path)


def _refuse_to_replace(chosen: dict[str, Problem], present: dict[str, Path]) -> None:
    for name, problem in chosen.items():
        if name in present and present[name].read_bytes() != problem.source.encode():
            raise BadProblem(f"Another problem called {name} is there already; rename the file, or give --force.")


def _keep(folder: Path, problems: Iterable[Problem]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for problem in problems:
        # Under its name there is never half a file.
        partial = folder / f".{problem.name}.partial"
        partial.write_bytes(problem.source.encode())
        partial.replace(folder / f"{problem.name}.py")
        say(f"Added {problem.name}.")
