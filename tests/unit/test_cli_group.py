"""The group: commands are found and loaded late, and whatever goes wrong is a sentence and an exit code."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import drkernel_q
from drkernel_q import errors
from drkernel_q.cli import drkq
from drkernel_q.cli.group import CommandGroup
from tests.need import ROOT


@click.command()
def unavailable() -> None:
    """Find no broker.

    This is further down.
    """
    try:
        raise ConnectionRefusedError(111, "Connection\x1b[31m refused")
    except OSError as error:
        raise errors.NoBroker from error


@click.command()
def buggy() -> None:
    """Have a bug."""
    raise KeyError("missing")


@click.command()
def interrupted() -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


@click.command()
def picky() -> None:
    """Blame the usage."""
    raise click.UsageError("not like that")


@click.command()
def socket_broke() -> None:
    """Lose a connection, which is not the reader of stdout."""
    raise BrokenPipeError(32, "Broken pipe")


COMMANDS = {name: f"{__name__}:{name}" for name in ("unavailable", "buggy", "interrupted", "picky", "socket_broke")}


def run(*args: str, **targets: str) -> Result:
    group = CommandGroup("drkq", params=[click.Option(["-v", "--debug"], is_flag=True)])
    group.targets = COMMANDS | targets
    return CliRunner().invoke(group, args)


def python_m(*args: str, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "drkernel_q", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_error_is_its_sentence_its_cause_and_its_exit_code() -> None:
    result = run("unavailable")
    assert result.exit_code == os.EX_UNAVAILABLE
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"drkq: {errors.NoBroker()}",
        "  caused by ConnectionRefusedError: [Errno 111] Connection\\x1b[31m refused",
    ]


@pytest.mark.parametrize(("args", "variable"), [(["--debug"], None), (["-v"], None), ([], "1")])
def test_traceback_is_shown_on_demand(args: list[str], variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable:
        monkeypatch.setenv("DRKQ_DEBUG", variable)
    assert "Traceback (most recent call last)" in run(*args, "unavailable").stderr
    assert "Traceback (most recent call last)" in run(*args, "buggy").stderr


def test_bug_is_called_one_and_says_how_to_report_it() -> None:
    result = run("buggy")
    assert result.exit_code == os.EX_SOFTWARE
    assert result.stdout == ""
    assert result.stderr.startswith("drkq: This is a bug of drkq, not of your kernel: KeyError: 'missing'")
    assert "drkq --debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_broken_socket_is_a_bug_and_not_a_reader_that_left() -> None:
    assert run("socket_broke").exit_code == os.EX_SOFTWARE


def test_wrong_setting_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRKQ_DEBUG", "perhaps")
    assert run("unavailable").exit_code == os.EX_UNAVAILABLE


def test_interrupt_is_130() -> None:
    result = run("interrupted")
    assert (result.exit_code, result.stdout) == (130, "")


def test_usage_error_is_2() -> None:
    assert run("picky").exit_code == 2
    assert run("buggy", "--no-such-option").exit_code == 2


def test_misspelt_command_gets_a_suggestion() -> None:
    result = run("bugy")
    assert result.exit_code == 2
    assert "Did you mean 'buggy'?" in result.stderr
    assert "No such command 'qqq'" in run("qqq").stderr


def test_command_that_needs_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy.py").write_text("import not_installed_anywhere.deeper\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = run("needy", needy="needy:command")
    assert result.exit_code == os.EX_CONFIG
    assert "`not_installed_anywhere`" in result.stderr
    assert "pip install" in result.stderr


def test_missing_module_of_ours_is_a_bug() -> None:
    assert run("lost", lost="drkernel_q.no_such_module:command").exit_code == os.EX_SOFTWARE


def test_help_lists_first_sentences_and_imports_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud.py").write_text('def command():\n    """Shout."""\nraise SystemError\n')
    (tmp_path / "assigned.py").write_text('"""Whisper.\n\nMore."""\ncommand = None\n')
    monkeypatch.syspath_prepend(tmp_path)
    result = run("--help", loud="loud:command", assigned="assigned:command", gone="nowhere:command")
    assert result.exit_code == 0
    lines = [line.split(maxsplit=1) for line in result.stdout.partition("Commands:\n")[2].splitlines()]
    assert [words for words in lines if words[0] in {"loud", "assigned", "gone", "unavailable"}] == [
        ["assigned", "Whisper"],
        ["gone"],
        ["loud", "Shout"],
        ["unavailable", "Find no broker"],
    ]


def test_completion_offers_commands_with_their_help() -> None:
    done = python_m(env=os.environ | {"_DRKQ_COMPLETE": "zsh_complete", "COMP_WORDS": "drkq comp", "COMP_CWORD": "1"})
    assert done.stdout.split("\n")[:3] == ["plain", "completion", "Print a completion script for a shell"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_drkq(shell: str) -> None:
    result = CliRunner().invoke(drkq, ["completion", shell])
    assert result.exit_code == 0
    assert f"_DRKQ_COMPLETE={shell}_complete" in result.stdout


def test_version() -> None:
    result = CliRunner().invoke(drkq, ["--version"])
    assert result.stdout == f"drkq {drkernel_q.__version__}\n"


@pytest.mark.parametrize("args", [[], ["-h"], ["--help"]])
def test_no_arguments_or_help_show_examples_and_exit_codes(args: list[str]) -> None:
    result = CliRunner().invoke(drkq, args)
    shown = result.stdout + result.stderr
    assert "Examples:\n    drkq eval" in shown
    assert "130 Ctrl-C" in shown


def test_commands_are_found_in_a_checkout_from_any_folder(tmp_path: Path) -> None:
    done = python_m("config", "path", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith("drkq/config.toml\n")


def test_other_distributions_add_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        'import click\n@click.command()\ndef command():\n    """Plug in."""\n'
        "    raise click.ClickException('hello')\n"
    )
    (tmp_path / "plugin.py").write_text(source)
    metadata = tmp_path / "plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[drkq.commands]\nplug = plugin:command\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    assert "plug        Plug in" in python_m("--help").stdout
    assert "hello" in python_m("plug").stderr


def test_ctrl_c_ends_a_real_command_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import click, time\n@click.command()\ndef command():\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    (tmp_path / "slow.py").write_text(source)
    start = (
        "from drkernel_q.cli import drkq, main; drkq.targets = {'slow': 'slow:command'}; "
        "import sys; sys.argv = ['drkq', 'slow']; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate()
    assert process.returncode == 130
    assert talk == "Interrupted.\n"


def test_eval_help_is_quick() -> None:
    """Under 0.3 s; processor time and the best of three, since other tests may share the cores."""
    times_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python_m("eval", "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(times_s) < 0.3
