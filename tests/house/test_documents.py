"""Commands in documents are ones that drkq reads: names, options and their values."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from drkernel_q.cli import drkq
from tests.need import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Where a command may begin in a line: at its start, after a prompt, variables, or a launcher.
_COMMAND = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:(?:torchrun|accelerate launch)\b.*? -m )?(?:drkq|drkernel_q) (.+?)(?:  .*)?$"
)
_ENDS = ("|", ">", "&&", ";", "#", "&", "<", "2>")


def commands(document: Path) -> Iterator[list[str]]:
    for block in _FENCE.findall(document.read_text()):
        for line in re.sub(r" *\\\n\s*", " ", block).splitlines():
            found = _COMMAND.match(re.sub(r"\$\([^)]*\)", "FOUND", line.strip()))
            if found and "..." not in found[1]:
                yield list(words(found[1]))


def words(text: str) -> Iterator[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    for word in lexer:
        if word.startswith(_ENDS):
            return
        yield word.rstrip(";")
        if word.endswith(";"):
            return


def parse(line: list[str]) -> None:
    """Have click read a command; nothing is run.

    Raises:
        click.UsageError: there is no such command, option or value.
    """
    if line[0].startswith("-"):
        return
    if line[0] not in drkq.targets:
        raise click.UsageError(f"no command `{line[0]}`")
    module, _, attribute = drkq.targets[line[0]].partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    rest = line[1:]
    while isinstance(command, click.Group):
        if not rest or rest[0] not in command.commands:
            raise click.UsageError(f"no command `{' '.join(line[:3])}`")
        command, rest = command.commands[rest[0]], rest[1:]
    # As in the group: click keeps the first help option that it makes for a command.
    command.make_context(line[0], rest, help_option_names=["-h", "--help"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_can_be_read(document: Path) -> None:
    wrong = []
    for line in commands(document):
        try:
            parse(list(line))
        except click.exceptions.Exit:  # --help
            continue
        except click.UsageError as error:
            if "does not exist" in error.format_message():  # a file of the reader's
                continue
            wrong.append(f"drkq {' '.join(line)}: {error.format_message()}")
    assert wrong == []


def test_a_wrong_command_is_found() -> None:
    for line in (["evil", "x"], ["db", "nothing"], ["eval", "k.py", "--no-such-option"], ["up", "--device"]):
        with pytest.raises(click.UsageError):
            parse(line)
