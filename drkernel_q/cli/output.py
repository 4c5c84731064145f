"""The mouth of drkq: data goes to stdout, talk to stderr, and nothing else in the package writes to stdout.

Text that a candidate had a hand in is shown without its control characters, so that no kernel can move the
cursor or recolour the terminal of the person who judges it.
"""

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

#: What a shell reports for a process that SIGPIPE ended; 1 would say that a kernel is at fault.
EXIT_READER_GONE = 141

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}

#: The console of the status line on screen, if there is one; talk goes through it so that lines do not tear.
_status_console: "Console | None" = None


def emit_text(text: str) -> None:
    """Write `text` and a newline to stdout."""
    _write((printable(text) if sys.stdout.isatty() else text) + "\n")


def emit_json(document: object) -> None:
    """Write one JSON document, indented, to stdout."""
    _write(_to_json(document, indent=2) + "\n")


def emit_jsonl(documents: Iterable[object]) -> None:
    """Write one JSON document a line to stdout, each as soon as it is there."""
    for document in documents:
        _write(_to_json(document, indent=None) + "\n")


def emit_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a header and rows as CSV to stdout; None is an empty field."""
    with _quiet_when_reader_gone():
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        sys.stdout.flush()


def emit_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table for people to stdout: drawn on a terminal, plain aligned columns otherwise."""
    cells = [list(row) for row in rows]
    numeric = [_is_numeric([row[index] for row in cells]) for index in range(len(columns))]
    shown = [[_cell(value) for value in row] for row in cells]
    if sys.stdout.isatty():
        _write_rich_table(columns, shown, numeric)
        return
    widths = [max(len(line[index]) for line in [list(columns), *shown]) for index in range(len(columns))]
    for line in [list(columns), *shown]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        _write("  ".join(padded).rstrip() + "\n")


def say(text: str) -> None:
    """Tell the person something on stderr."""
    text = printable(text)
    if _status_console is not None:
        _status_console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    # Nobody may be listening (`2>&-`, a closed terminal); talk is never worth failing for.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(_encodable(text, sys.stderr) + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Keep a status line on stderr while the block runs; call what is yielded to change its text.

    On a terminal it is one line with a spinner that disappears at the end; elsewhere each new text is a line.
    """
    global _status_console  # noqa: PLW0603 - stderr is one, so is the status line on it
    if not sys.stderr.isatty() or _status_console is not None:
        yield _line_by_line(text)
        return
    from rich.console import Console
    from rich.text import Text

    _status_console = Console(stderr=True)
    try:
        with _status_console.status(Text(printable(text))) as status:
            yield lambda new: status.update(Text(printable(new)))
    finally:
        _status_console = None


def printable(text: str) -> str:
    r"""Replace the control characters of `text`, except tabs and newlines, by `\xNN`."""
    return text.translate(_CONTROL)


def _line_by_line(text: str) -> Callable[[str], None]:
    """Say `text`, and return what says each further text that differs from the one before."""
    last = ""

    def tell(new: str) -> None:
        nonlocal last
        if new != last:
            say(new)
        last = new

    tell(text)
    return tell


def _write(text: str) -> None:
    with _quiet_when_reader_gone():
        sys.stdout.write(_encodable(text, sys.stdout))
        sys.stdout.flush()


@contextlib.contextmanager
def _quiet_when_reader_gone() -> Iterator[None]:
    """End the command quietly when nobody reads stdout any more; unwinding lets everything clean up."""
    try:
        yield
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_READER_GONE) from None


def _encodable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _to_json(document: object, *, indent: int | None) -> str:
    text = json.dumps(document, default=_plain, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # A lone surrogate in a candidate's text, or a terminal that is not UTF-8: still JSON, only uglier.
        return json.dumps(document, default=_plain, allow_nan=False, indent=indent)
    return text


def _plain(value: object) -> object:
    """Turn what json does not know into what it does: pydantic models into dicts, the rest into text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)


def _is_numeric(values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(" ".join(str(value).split()))


def _write_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    with _quiet_when_reader_gone():
        Console(file=sys.stdout).print(table)
        sys.stdout.flush()
