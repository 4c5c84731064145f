"""What `drkq report` does: from names to runs of a store, and from these to files."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from drkernel_q.cli.output import emit_text, progress, say
from drkernel_q.errors import BadInput, BadSettings
from drkernel_q.record import FILE
from drkernel_q.report import compared, page
from drkernel_q.report.facts import Facts, Rows, gather, runs
from drkernel_q.report.figure import of_run
from drkernel_q.report.image import WRITERS
from drkernel_q.settings import load_settings
from drkernel_q.store import Store

#: Runs of a whole store that are shown, and that are listed: the newest.
SHOWN, LISTED = 12, 200


class Order(NamedTuple):
    """What the command was asked to do."""

    store: str
    named: dict[str, Path]
    """Runs with the folders of their records; none: all of the store."""
    data_dir: Path
    title: str
    path: Path


def prepare(subjects: Sequence[str], output: Path | None) -> Order:
    """Read what the names mean.

    Raises:
        BadInput: a store and something else are named together.
    """
    settings = load_settings()
    stores = [subject for subject in subjects if _is_store(subject)]
    if stores and len(subjects) > 1:
        raise BadInput("Name either one store or runs, not both.")
    url = (
        settings.store if not stores else stores[0] if "://" in stores[0] else f"sqlite:///{Path(stores[0]).resolve()}"
    )
    named = {} if stores else dict(_run(subject, settings.data_dir) for subject in subjects)
    title = " and ".join(named) if len(named) <= 2 else f"{len(named)} runs"  # noqa: PLR2004 - two names are short
    title = title or (Path(stores[0]).stem if stores else "drkq")
    return Order(url, named, settings.data_dir, title, output or Path(f"{file_name(title)}.html"))


def write(order: Order, figures: Path | None, formats: Sequence[str]) -> None:
    """Ask the store, and write the page and the figures.

    Raises:
        BadInput: there is no such run, or no run at all.
        BadSettings: a file cannot be written.
        MissingExtra: what draws PNG is not installed.
    """
    with Store.open(order.store) as store, progress("asking the store") as tell:
        store.check()
        listed = _listed(store, order)
        facts = []
        for name, folder in _shown(listed, order).items():
            tell(f"asking about {name}")
            facts.append(gather(store, name, folder))
    with _explained():
        order.path.write_text(page(order.title, listed, facts), encoding="utf-8", errors="backslashreplace")
        if figures is not None:
            _write_figures(facts, figures, formats)
    emit_text(str(order.path))
    if figures is not None:
        say(f"The figures are in {figures}.")


def file_name(title: str) -> str:
    """Return a name for a file that is about this."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", title).strip("-").lower() or "report"


def _is_store(subject: str) -> bool:
    return "://" in subject or Path(subject).is_file()


def _run(subject: str, data_dir: Path) -> tuple[str, Path]:
    """A run's name and its folder, which may be named instead of the run."""
    folder = Path(subject)
    return (folder.resolve().name, folder) if (folder / FILE).is_file() else (subject, data_dir / "runs" / subject)


def _listed(store: Store, order: Order) -> Rows:
    found = runs(store, LISTED) if len(order.named) != 1 else []
    if not order.named and not found:
        raise BadInput("There is no run in this store yet.")
    return [row for row in found if row["run"] in order.named] if order.named else found


def _shown(listed: Rows, order: Order) -> dict[str, Path]:
    return order.named or {row["run"]: order.data_dir / "runs" / row["run"] for row in listed[:SHOWN]}


def _write_figures(facts: Sequence[Facts], folder: Path, formats: Sequence[str]) -> None:
    """Write the figures; those of several runs begin with the run's name."""
    drawn = {each.title: each for each in compared(facts)}
    for one in facts:
        prefix = "" if len(facts) == 1 else f"{one.run.name} "
        drawn |= {f"{prefix}{each.title}": each for each in of_run(one)}
    folder.mkdir(parents=True, exist_ok=True)
    for title, each in drawn.items():
        for ending in dict.fromkeys(formats):
            WRITERS[ending](each.svg, folder / f"{file_name(title)}.{ending}")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadSettings(f"{error.filename} cannot be written: {error.strerror}.") from error
