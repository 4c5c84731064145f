"""`drkq config`: every setting, its value and where it comes from."""

import click

from drkernel_q.cli.output import emit_json, emit_table, emit_text

COLUMNS = ("name", "value", "source", "description")


@click.group()
def command() -> None:
    """Show every setting, its value and where it comes from."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list.")
def show(as_json: bool) -> None:
    """List every setting; secrets are masked.

    Flags win over DRKQ_* variables, those over ./drkq.toml, those over the user's file, those over the
    defaults.

    \b
    Examples:
      drkq config show
      drkq config show --json | jq '.[] | select(.source != "default")'
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q import settings

    rows = settings.explain(settings.load_settings())
    if as_json:
        emit_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    else:
        emit_table(COLUMNS, rows)


@command.command()
def path() -> None:
    """Print the path of the user's settings file, whether it exists or not.

    \b
    Example:
      $EDITOR "$(drkq config path)"
    """  # noqa: D301 - click wants the backspace character itself
    from drkernel_q import settings

    emit_text(str(settings.USER_FILE))
