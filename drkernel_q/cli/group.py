"""The group that finds commands by name, loads one when it is called, and turns errors into sentences."""

import ast
import difflib
import importlib
import importlib.metadata
import importlib.util
import os
import tomllib
import traceback
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from drkernel_q.cli.output import say
from drkernel_q.errors import Cancelled, DrkqError, MissingExtra

ENTRY_POINTS = "drkq.commands"
_OUR_PACKAGES = frozenset({"drkernel_q", "workers", "policy"})
#: Longest cause that is shown; validation errors run over many lines.
_MAX_CAUSE_CHARS = 300


def _extra(module: str) -> str:
    """Name the extra that brings what a command of this module needs."""
    return "policy" if module.startswith("policy.") else "worker"


class CommandGroup(click.Group):
    """A click group over the entry points `drkq.commands`."""

    @cached_property
    def targets(self) -> dict[str, str]:
        """Where each command lives, as `module:attribute`."""
        installed = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}
        return installed | _checkout_targets()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command, in alphabetical order."""
        return sorted(self.targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of this name.

        Raises:
            MissingExtra: it stands on a package that is not installed.
        """
        target = self.targets.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
                raise
            raise MissingExtra(
                f"`drkq {cmd_name}` needs the Python package `{error.name}`; "
                f"add it with `pip install 'drkq[{_extra(module)}]'`."
            ) from error
        assert isinstance(command, click.Command), f"{target} is not a click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` name, and suggest the nearest one if there is none."""
        name = args[0]
        near = difflib.get_close_matches(name, self.targets, n=1)
        if name not in self.targets and near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their first sentences, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help(target)) for name, target in sorted(self.targets.items())])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names, importing none of them."""
        names = [name for name in sorted(self.targets) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=short_help(self.targets[name])) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever escapes it becomes a sentence on stderr and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (click.Abort, KeyboardInterrupt):
            say("Interrupted.")
            ctx.exit(Cancelled.exit_code)
        except DrkqError as error:
            tell_error(error, debug=_debug(ctx))
            ctx.exit(error.exit_code)
        except Exception as error:  # noqa: BLE001 - the boundary of the CLI: a bug gets its exit code here
            tell_bug(error, debug=_debug(ctx))
            ctx.exit(os.EX_SOFTWARE)


def short_help(target: str) -> str:
    """First sentence of the command at `module:attribute`, read from its source: nothing is imported."""
    module, _, attribute = target.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
    return (ast.get_docstring(tree) or "").partition("\n")[0].rstrip(".")


def tell_error(error: DrkqError, *, debug: bool) -> None:
    """Say what went wrong, and what caused it."""
    if debug:
        say("".join(traceback.format_exception(error)).rstrip())
    say(f"drkq: {error}")
    cause = error.__cause__
    while cause is not None:
        say(f"  caused by {_one_line(cause)}")
        cause = cause.__cause__


def tell_bug(error: Exception, *, debug: bool) -> None:
    """Say that drkq has a bug, and how to report it."""
    if debug:
        say("".join(traceback.format_exception(error)).rstrip())
    say(f"drkq: This is a bug of drkq, not of your kernel: {_one_line(error)}")
    again = "" if debug else "the same command with `drkq --debug ...` and "
    say(f"  Please report it as CONTRIBUTING.md describes, with the output of {again}`drkq doctor --json`.")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if len(text) > _MAX_CAUSE_CHARS:
        text = text[:_MAX_CAUSE_CHARS] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _debug(ctx: click.Context) -> bool:
    """Whether a traceback is wanted, by flag or by setting."""
    if ctx.params.get("debug"):
        return True
    from drkernel_q.settings import load_settings  # pydantic takes longer to import than `--help` may take

    try:
        return load_settings().debug
    except DrkqError:
        return False


def _checkout_targets() -> dict[str, str]:
    """Read the commands from the checkout's pyproject.toml, which an installation has in its metadata.

    In a checkout the file is newer than any metadata; in an installation there is no such file.
    """
    path = Path(__file__).parents[2] / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    targets: dict[str, str] = project.get("entry-points", {}).get(ENTRY_POINTS, {})
    return targets if project.get("name") == "drkq" else {}
