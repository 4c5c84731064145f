"""Text: whether a Triton function is one that the candidate's source holds.

The name of a file proves nothing: a source that a compiler has written is compiled under any name. What counts is that
the function's code is among what the source compiles to, and what Triton compiles is what the source says.
"""

from collections.abc import Iterable
from types import CodeType
from typing import Any


class Text:
    """The source that is judged; empty until it has been read."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._codes: frozenset[CodeType] = frozenset()
        self._lines = ""
        self._known: dict[int, tuple[Any, CodeType, object, bool]] = {}

    def read(self, source: str, path: str) -> None:
        """Take `source`, which is to be imported from `path`; one that cannot be compiled holds nothing."""
        self._lines = _stripped(source)
        try:
            self._codes = frozenset(codes_within(compile(source, path, "exec", 0, True)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._codes = frozenset()

    def holds(self, function: Any) -> bool:
        """Whether the source holds a Triton function."""
        code, written = getattr(getattr(function, "fn", None), "__code__", None), getattr(function, "src", None)
        if type(code) is not CodeType:
            return False
        known = self._known.get(id(function))  # to look costs more than a launch
        if known is None or known[0] is not function or known[1] is not code or known[2] is not written:
            same = written is None or (type(written) is str and _stripped(written) in self._lines)
            known = self._known[id(function)] = function, code, written, same and code in self._codes
        return known[3]


def codes_within(code: CodeType) -> Iterable[CodeType]:
    """List `code` and all that is defined in it; looks nothing up by name."""
    found, kind = [code], code.__class__
    for each in found:  # it grows while it is gone through
        found += [constant for constant in each.co_consts if constant.__class__ is kind]
    return found


def _stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())
