"""Problems in files: one file, or a folder of them."""

import re
from pathlib import Path

from drkernel_q.errors import BadProblem
from drkernel_q.problem.reference import Problem
from drkernel_q.problem.source import MAX_PROBLEM_BYTES, check_source


def load_problem(path: Path, *, name: str | None = None) -> Problem:
    """Load one file and check, without running it, that it can be a reference; its stem is the default name.

    Raises:
        BadProblem: the file cannot be read, or is no reference; one sentence with file and line.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows what is too large, also where there is no size to ask for.
            data = file.read(MAX_PROBLEM_BYTES + 1)
        if len(data) > MAX_PROBLEM_BYTES:
            raise BadProblem(f"{path} has more than {MAX_PROBLEM_BYTES} bytes, the most a reference may have.")
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadProblem(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise BadProblem(f"{path} cannot be read: {error.strerror}.") from None
    check_source(source, str(path))
    return Problem(name=name or path.stem, source=source)


def load_folder(path: Path) -> list[Problem]:
    """Load every `.py` file of a folder, or else of its folders `level1` and so on, sorted as people count.

    Raises:
        BadProblem: the folder holds no such file, or one that is no reference.
    """
    files = problem_files(path) or [file for level in sorted(path.glob("level[0-9]*")) for file in problem_files(level)]
    if not files:
        raise BadProblem(f"{path} is no folder with .py files in it.")
    return [load_problem(file) for file in files]


def problem_files(path: Path) -> list[Path]:
    """List the `.py` files of a folder, sorted as people count; none if there is no such folder."""
    return sorted(path.glob("[!._]*.py"), key=lambda file: _natural(file.stem))


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(digits or 0), letters) for digits, letters in re.findall(r"([0-9]*)([^0-9]*)", text)]
