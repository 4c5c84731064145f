"""The errors a person can act on: drawn, worded, and each with its exit code."""

import os
import re

import pytest

from drkernel_q import errors
from drkernel_q.errors import DrkqError

#: What README and docs promise for errors; 0, 1 and 2 are no errors of this kind, 70 is a bug.
EXIT_CODES = {1, os.EX_DATAERR, os.EX_UNAVAILABLE, os.EX_TEMPFAIL, os.EX_CONFIG, 130}


def tree(cls: type[DrkqError] = DrkqError, depth: int = 0) -> list[tuple[int, str, int]]:
    """Depth, name and exit code of `cls` and all below it, in the order of the source."""
    lines = [(depth, cls.__name__, cls.exit_code)]
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            lines += tree(child, depth + 1)
    return lines


def drawn() -> list[tuple[int, str, int]]:
    text = (errors.__doc__ or "").split("```")[1]
    lines = [re.fullmatch(r"([│├└─ ]*)(\w+) +(\d+)\b.*", line) for line in text.strip().splitlines()]
    assert all(lines)
    return [(len(line[1]) // 4, line[2], int(line[3])) for line in lines if line]


def test_tree_is_drawn_as_it_is() -> None:
    assert drawn() == tree()


def classes() -> list[type[DrkqError]]:
    return [getattr(errors, name) for _, name, _ in tree()]


@pytest.mark.parametrize("cls", classes())
def test_docstring_is_a_sentence_and_the_default_message(cls: type[DrkqError]) -> None:
    message = str(cls())
    assert cls.__doc__
    assert message == " ".join(cls.__doc__.split("\n\n")[0].split())
    assert message.endswith(".")
    assert cls.exit_code in EXIT_CODES


def test_error_that_is_raised_elsewhere_is_declared_here() -> None:
    strays = [cls for cls in DrkqError.__subclasses__() if cls.__module__ != errors.__name__]
    assert [cls for cls in strays if not cls.__module__.startswith("tests.")] == []
