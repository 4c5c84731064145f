"""`drkq report`: one self-contained page about a run."""

import re
from pathlib import Path

import click

from drkernel_q.cli.output import emit_text, say

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run")
@click.option("-o", "--output", metavar="FILE", type=_PATH, help="Where the page is written (default: RUN.html).")
@click.option("--figures", metavar="DIR", type=_PATH, help="Write each figure as an SVG file, too.")
def command(run: str, output: Path | None, figures: Path | None) -> None:
    """Write a page about a run: Fast@p by turn, rates, training curves, evidence, best kernels with their source.

    RUN is a name, or the folder of a training run that is not in the data directory. The page needs a browser and
    nothing else: no script, no network; it follows the reader's choice of light or dark.

    \b
    Examples:
      drkq report mine
      drkq report mine -o report.html --figures figures/
      drkq report runs/rl
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.errors import BadSettings
    from drkernel_q.record import FILE
    from drkernel_q.report import page
    from drkernel_q.report.facts import gather
    from drkernel_q.report.page import figures as drawn
    from drkernel_q.settings import load_settings
    from drkernel_q.store import Store

    settings = load_settings()
    path = output or Path(f"{_file_name(Path(run).name)}.html")
    folder = Path(run) if (Path(run) / FILE).is_file() else settings.data_dir / "runs" / run
    with Store.open(settings.store) as store:
        store.check()
        facts = gather(store, folder.resolve().name if folder == Path(run) else run, folder / FILE)
    try:
        path.write_text(page(facts), encoding="utf-8", errors="backslashreplace")
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for title, svg in drawn(facts).items():
                (figures / f"{_file_name(title)}.svg").write_text(svg, encoding="utf-8")
    except OSError as error:
        raise BadSettings(f"{error.filename} cannot be written: {error.strerror}.") from error
    emit_text(str(path))
    if figures is not None:
        say(f"The figures are in {figures}.")


def _file_name(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", title).strip("-").lower() or "report"
