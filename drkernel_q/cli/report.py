"""`drkq report`: one self-contained page about runs."""

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("subjects", nargs=-1, metavar="[RUN|DB|FOLDER]...")
@click.option("-o", "--output", metavar="FILE", type=_PATH, help="Where the page is written (default: RUN.html).")
@click.option("--figures", metavar="DIR", type=_PATH, help="Write each figure as a file, too.")
@click.option(
    "--format",
    "formats",
    type=click.Choice(["svg", "png"]),
    multiple=True,
    default=["svg"],
    show_default=True,
    help="Of these files; may be repeated.",
)
def command(subjects: tuple[str, ...], output: Path | None, figures: Path | None, formats: tuple[str, ...]) -> None:
    """Write a page about runs: Fast@p by turn and step, training and search curves, hacks, lazy and best kernels.

    Name runs, folders of training runs, or a whole store: a SQLite file, a URL, or nothing for the store of the
    settings. Several runs are compared; of a whole store the newest runs are shown and the others listed. The
    page needs a browser and nothing else: no script, no network; it follows the reader's choice of light or dark.

    \b
    Examples:
      drkq report mine
      drkq report mine -o report.html --figures figures/ --format svg --format png
      drkq report runs/rl
      drkq report search-context search-vanilla
      drkq report ~/.local/share/drkq/drkq.sqlite -o store.html
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q.cli.reporting import prepare, write

    write(prepare(subjects, output), figures, formats)
