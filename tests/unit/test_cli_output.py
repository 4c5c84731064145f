"""Data on stdout, talk on stderr, and no kernel moves the cursor."""

import csv
import datetime
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkernel_q.cli.output import (
    EXIT_READER_GONE,
    emit_csv,
    emit_json,
    emit_jsonl,
    emit_table,
    emit_text,
    printable,
    progress,
    say,
)
from drkernel_q.value import Value

ESCAPE = "\x1b[2J\x9b31m\x07"


class Pair(Value):
    """A value of two fields."""

    left: int
    path: Path


def run_python(source: str) -> list[str]:
    return [sys.executable, "-c", f"from drkernel_q.cli.output import *\n{source}"]


def on_terminal(source: str) -> str:
    """Run `source` with a terminal for stdin, stdout and stderr; return what it shows."""
    master, slave = pty.openpty()
    process = subprocess.Popen(run_python(source), stdin=slave, stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    shown = b""
    while chunk := _read(master):
        shown += chunk
    os.close(master)
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""


def test_json_writes_values_paths_and_times(capsys: pytest.CaptureFixture[str]) -> None:
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    emit_json({"pair": Pair(left=1, path=Path("a/b")), "when": when})
    assert json.loads(capsys.readouterr().out) == {
        "pair": {"left": 1, "path": "a/b"},
        "when": "2026-01-02 00:00:00+00:00",
    }


@given(text=st.text())
def test_any_text_survives_json(text: str) -> None:
    stdout, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        emit_jsonl([text])
        sys.stdout.seek(0)
        assert json.loads(sys.stdout.read()) == text
    finally:
        sys.stdout = stdout


def test_json_of_a_lone_surrogate_is_still_json() -> None:
    done = subprocess.run(run_python(r"emit_json('\ud800')"), capture_output=True, check=True)
    assert json.loads(done.stdout) == "\ud800"


def test_json_refuses_what_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        emit_json(float("nan"))


def test_jsonl_is_written_as_it_comes() -> None:
    source = "import sys\nemit_jsonl(1 if n == 0 else sys.stdin.read() for n in range(2))"
    with subprocess.Popen(run_python(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        rest, _ = process.communicate(b"2")
    assert rest == b'"2"\n'


def test_csv_quotes_and_leaves_none_empty(capsys: pytest.CaptureFixture[str]) -> None:
    emit_csv(["name", "value"], [["a,b\n", None], ['"', 1.5]])
    read = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert read == [["name", "value"], ["a,b\n", ""], ['"', "1.5"]]


def test_plain_table_lines_columns_up_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    emit_table(["name", "ms", "ok"], [["a", 1.23456, True], ["long name", None, False]])
    assert capsys.readouterr().out.splitlines() == [
        "name          ms  ok",
        "a          1.235  yes",
        "long name      -  no",
    ]


def test_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    emit_table(["name", "ms"], [])
    assert capsys.readouterr().out == "name  ms\n"


def test_table_on_a_terminal_is_drawn_and_harmless() -> None:
    shown = on_terminal(f"emit_table(['name'], [[{ESCAPE!r} + '[bold]x[/bold]']])")
    assert "\\x1b[2J\\x9b31m\\x07[bold]x[/bold]" in shown
    assert "─" in shown


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    source = "with progress('working'): emit_table(['name'], [['x']])"
    assert "\x1b[32m" in on_terminal(source)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in on_terminal(source)


def test_text_keeps_its_bytes_in_a_pipe_and_loses_control_characters_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emit_text(ESCAPE)
    assert capsys.readouterr().out == ESCAPE + "\n"
    assert on_terminal(f"emit_text({ESCAPE!r})") == "\\x1b[2J\\x9b31m\\x07\r\n"


def test_talk_goes_to_stderr_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"two\tlines\n{ESCAPE}")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "two\tlines\n\\x1b[2J\\x9b31m\\x07\n"


@given(text=st.text())
def test_printable_leaves_no_control_character_and_no_other_change(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0) and c not in "\t\n"]
    assert printable(shown) == shown


def test_progress_in_a_pipe_is_a_line_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("one") as tell:
        for text in ("one", "two", "two", "three"):
            tell(text)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["one", "two", "three"]
    assert captured.out == ""


def test_progress_on_a_terminal_makes_room_for_talk_and_restores_the_cursor() -> None:
    shown = on_terminal("with progress('working'): say('a word')\nsay('after')")
    assert "a word\r\n" in shown
    assert shown.endswith("after\r\n")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_progress_within_progress_is_talk() -> None:
    shown = on_terminal("with progress('outer'):\n    with progress('inner') as tell: tell('deeper')")
    assert "inner\r\n" in shown
    assert "deeper\r\n" in shown


@pytest.mark.parametrize(
    "source",
    [
        "emit_jsonl(range(10**7))",
        "emit_csv(['n'], ([n] for n in range(10**7)))",
        "while True: emit_text('x' * 1000)",
    ],
)
def test_reader_that_leaves_ends_the_command_quietly_and_cleanly(source: str) -> None:
    body = source.replace("\n", "\n    ")
    process = subprocess.Popen(
        run_python(f"try:\n    {body}\nfinally: say('cleaned up')"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == EXIT_READER_GONE
    assert process.stderr.read() == "cleaned up\n"
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "drkernel_q", "config", "path"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.endswith("config.toml\n") or closed == "1>&-"
