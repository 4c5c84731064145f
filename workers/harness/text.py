"""Text: whether a Triton function is one that the candidate's source holds.

The name of a file proves nothing: a source that a compiler has written is compiled under any name. What counts is that
the function's code is among what the source compiles to, and what Triton compiles is what the source says.
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType
from typing import Any


class Text:
    """The source that is judged; empty until it has been read."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.is_held: Callable[[CodeType, str | None], bool] = _nothing_is_held
        """Whether the source holds a function of this code, and of this text if it has one; a guard keeps it as it is.
        """

    def read(self, source: str, path: str) -> None:
        """Take `source`, which is to be imported from `path`; one that cannot be compiled holds nothing."""
        source = source.removeprefix("\ufeff")  # as Python does with what an editor has put there
        lines, codes, stripped = _stripped(source), frozenset[CodeType](), _stripped
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            codes = frozenset(codes_within(compile(source, path, "exec", 0, True)))

        def is_held(code: CodeType, written: str | None) -> bool:
            return (written is None or stripped(written) in lines) and code in codes

        self.is_held = functools.lru_cache(maxsize=None)(is_held)  # to look costs more than a launch

    def holds(self, function: Any) -> bool:
        """Whether the source holds a Triton function."""
        code, written = getattr(getattr(function, "fn", None), "__code__", None), getattr(function, "src", None)
        if type(code) is not CodeType or (written is not None and type(written) is not str):
            return False
        return self.is_held(code, written)


def _nothing_is_held(_code: CodeType, _written: str | None) -> bool:
    return False


def codes_within(code: CodeType) -> Iterable[CodeType]:
    """List `code` and all that is defined in it; looks nothing up by name."""
    found, kind = [code], code.__class__
    for each in found:  # it grows while it is gone through
        found += [constant for constant in each.co_consts if constant.__class__ is kind]
    return found


def _stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())
