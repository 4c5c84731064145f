"""Every command is found, has help with examples, and is written about."""

import importlib
import re
import tomllib
from collections.abc import Iterator

import click
import pytest

from drkernel_q.cli import drkq
from drkernel_q.cli.group import short_help
from tests.need import ROOT

TARGETS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
    "drkq.commands"
]


def load(target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """Every command below `command` that is no group, with what a person types."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))
    else:
        yield " ".join(path), command


def test_group_knows_every_entry_point() -> None:
    known = drkq.targets
    assert {name: known.get(name) for name in TARGETS} == TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_entry_point_resolves_and_the_list_shows_its_first_sentence(name: str) -> None:
    command = load(TARGETS[name])
    shown = short_help(TARGETS[name])
    assert shown
    assert (command.help or "").startswith(shown)


@pytest.mark.parametrize("name", TARGETS)
def test_every_option_and_command_has_help(name: str) -> None:
    silent = [
        f"{path}: {parameter.name}"
        for path, command in leaves(load(TARGETS[name]), ("drkq", name))
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help and not parameter.hidden
    ]
    silent += [path for path, command in leaves(load(TARGETS[name]), ("drkq", name)) if not command.help]
    assert silent == []


@pytest.mark.parametrize("name", TARGETS)
def test_help_has_an_example(name: str) -> None:
    without = [
        path
        for path, command in leaves(load(TARGETS[name]), ("drkq", name))
        if not re.search(rf"Examples?:.*{path}", command.help or "", re.DOTALL)
    ]
    assert without == []


@pytest.mark.parametrize("name", TARGETS)
def test_help_is_laid_out_by_click(name: str) -> None:
    """A raw docstring would show the two characters of click's paragraph mark instead of obeying them."""
    assert [
        path for path, command in leaves(load(TARGETS[name]), ("drkq", name)) if "\\b" in (command.help or "")
    ] == []


@pytest.mark.parametrize("name", TARGETS)
def test_command_is_written_about(name: str) -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "index.md").read_text()
    assert f"drkq {name}" in text
