"""Kernel: one candidate source, identified by its content, from a file or from what a model answered."""

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from drkernel_q.errors import BadKernelFile
from drkernel_q.value import Value, content_hash

#: Largest file that is read at all; what the judge accepts is far smaller (`workers.judging.judge.MAX_SOURCE_BYTES`).
MAX_FILE_BYTES = 64 * 2**20
_FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)")
_PYTHON = frozenset({"python", "python3", "py"})
_MODEL = re.compile(r"^(?:class[ \t]+ModelNew\b|ModelNew[ \t]*=)", re.MULTILINE)


class Kernel(Value):
    """A candidate: Python source that defines `ModelNew`. It may be wrong, empty or hostile; that is data."""

    source: str
    """The whole source text."""

    name: str = "kernel"
    """A label for people, such as the file's name; not part of the identity."""

    @property
    def hash(self) -> str:
        """Content hash of the source."""
        return content_hash("kernel", self.source)


def read_kernel(path: Path) -> Kernel:
    """Read a kernel file.

    Raises:
        BadKernelFile: the file is missing, not UTF-8 text, or larger than `MAX_FILE_BYTES`.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadKernelFile(f"{path} has {size} bytes; the largest kernel file read is {MAX_FILE_BYTES}.")
        return Kernel(source=path.read_text(encoding="utf-8"), name=path.name)
    except UnicodeDecodeError as error:
        raise BadKernelFile(f"{path} is not UTF-8 text (byte {error.start}).") from error
    except OSError as error:
        raise BadKernelFile(f"{path} cannot be read: {error.strerror}.") from error


def extract_kernel(completion: str, name: str = "kernel") -> Kernel | None:
    """Take the kernel out of a model's answer; None when there is none.

    It is the last complete ```python block that defines `ModelNew`; or else the last complete block of any other kind
    that does; or else an answer that is Python from end to end, or that ends in Python in a block nobody closed.
    What a model writes between <think> and </think> is no answer.
    """
    answer = _answer(completion)
    blocks = [block for block in _blocks(answer) if _MODEL.search(block.source)]
    complete = [block for block in blocks if block.complete]
    python = [block for block in complete if block.language in _PYTHON]
    if chosen := python or complete:
        return Kernel(source=chosen[-1].source, name=name)
    rest = blocks[-1].source if blocks else answer
    return Kernel(source=rest, name=name) if _MODEL.search(rest) and _is_python(rest) else None


class _Block(NamedTuple):
    """A fenced block of an answer."""

    language: str
    source: str
    complete: bool


def _answer(completion: str) -> str:
    """Leave out what was only thought; templates may open the thought before the completion begins."""
    before, thought, after = completion.rpartition("</think>")
    return (after if thought else before + after).partition("<think>")[0]


def _blocks(text: str) -> Iterator[_Block]:
    """Find the fenced blocks; a fence is closed by one of the same character that is as long at least."""
    opening, language, lines = "", "", list[str]()
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if not opening:
            if found:
                opening, language, lines = found["fence"], found["language"].lower(), []
        elif line.strip().startswith(opening) and not line.strip().strip(opening[0]):
            yield _Block(language, "".join(lines), complete=True)
            opening = ""
        else:
            lines.append(line)
    if opening:
        yield _Block(language, "".join(lines), complete=False)


def _is_python(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            # "\d" in a string is odd, not wrong.
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
