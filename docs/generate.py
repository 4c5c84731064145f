"""Write the pages that are made from the code: `python docs/generate.py`; a test compares them.

docs/reference/commands.md is what `drkq COMMAND -h` says, docs/reference/settings.md has the settings with defaults.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic_core import PydanticUndefined

from drkernel_q.cli import drkq
from drkernel_q.settings import Settings

REFERENCE = Path(__file__).parent / "reference"
COLUMNS = 100
#: Folders that differ from machine to machine.
_FOLDERS = {
    "data_dir": "the user's data folder",
    "cache_dir": "the user's cache folder",
    "state_dir": "the user's state folder",
    "lock_dir": "`drkq-locks` in the temporary folder",
}


def commands() -> str:
    """Write the help of every command."""
    parts = ["# Commands", "", "Made from the code by `docs/generate.py`; each is what `drkq COMMAND -h` says.", ""]
    for name in sorted(drkq.targets):
        module, _, attribute = drkq.targets[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        for path, each in _leaves(command, f"drkq {name}"):
            context = click.Context(each, info_name=path, terminal_width=COLUMNS, help_option_names=["-h", "--help"])
            text = each.get_help(context)
            parts += [f"## {path}", "", "```", text.rstrip(), "```", ""]
    return "\n".join(parts)


def _leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _leaves(command.commands[name], f"{path} {name}")
    else:
        yield path, command


def settings() -> str:
    """Write every setting as a row."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else f"`{field.default}`"
        meaning = " ".join((field.description or "").split())
        rows.append(f"| `{name}` | `DRKQ_{name.upper()}` | {_FOLDERS.get(name, default)} | {meaning} |")
    head = [
        "# Settings",
        "",
        "Made from the code by `docs/generate.py`. Flags win over variables, those over `drkq.toml` in the working",
        "directory, those over the user's file (`drkq config path`), those over the defaults; `drkq config show` tells",
        "where a value comes from.",
        "",
        "| setting | variable | default | meaning |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


PAGES = {"commands.md": commands, "settings.md": settings}


def main() -> int:
    """Write the pages; with --check, only name those that say something else."""
    written = {REFERENCE / name: write() for name, write in PAGES.items()}
    if "--check" in sys.argv[1:]:
        old = [path.name for path, text in written.items() if not path.exists() or path.read_text() != text]
        sys.stderr.write("".join(f"{name} is out of date; run `python docs/generate.py`\n" for name in old))
        return 1 if old else 0
    for path, text in written.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
