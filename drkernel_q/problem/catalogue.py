"""Where problems come from by name: the built-in set, a KernelBench checkout, and what the user has added."""

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from drkernel_q.errors import BadProblem
from drkernel_q.problem.file import load_problem, problem_files
from drkernel_q.problem.reference import Problem
from drkernel_q.problem.row import load_row

if TYPE_CHECKING:
    from drkernel_q.settings import Settings

BUILTIN = Path(__file__).parents[1] / "problems"
#: `1/23`, or `1/23_Softmax` in full, as `drkq problem list` prints it.
_KERNELBENCH_SPEC = re.compile(r"([1-4])/([0-9]+)(_[^/]*)?", re.ASCII)


def builtin_files() -> dict[str, Path]:
    """Files of the built-in set by name, level after level."""
    return {file.stem: file for level in sorted(BUILTIN.glob("level*")) for file in problem_files(level)}


def added_files(settings: "Settings") -> dict[str, Path]:
    """Files that were added with `drkq problem add`, by name."""
    return {file.stem: file for file in problem_files(added_folder(settings))}


def added_folder(settings: "Settings") -> Path:
    """Where added problems are kept."""
    return settings.data_dir / "problems"


def kernelbench_files(checkout: Path) -> dict[str, Path]:
    """Files of a KernelBench checkout by name, such as `1/23_Softmax`.

    Raises:
        BadProblem: there is none of KernelBench's folders.
    """
    root = checkout.expanduser()
    levels = sorted([*root.glob("KernelBench/level[1-4]"), *root.glob("level[1-4]")])
    if not levels:
        raise BadProblem(f"{checkout} is no checkout of KernelBench: it has no folder KernelBench/level1.")
    return {f"{level.name[-1]}/{file.stem}": file for level in levels for file in problem_files(level)}


def load_kernelbench(checkout: Path, spec: str) -> Problem:
    """Load a problem of a KernelBench checkout by level and number, such as `1/23`.

    Raises:
        BadProblem: there is no such problem, or it is no reference.
    """
    match = _KERNELBENCH_SPEC.fullmatch(spec)
    if match is None:
        raise BadProblem(f"`{spec}` is no problem of KernelBench; give level and number, such as 1/23.")
    start = f"{match[1]}/{int(match[2])}_"
    for name, file in kernelbench_files(checkout).items():
        if name == spec or (match[3] is None and name.startswith(start)):
            return load_problem(file, name=name)
    raise BadProblem(f"There is no problem {spec} in {checkout}.")


def find_problem(spec: str, settings: "Settings", *, paths: bool = True) -> Problem:
    """Find what a user means by `--problem`.

    In this order: `1/23` of KernelBench; `builtin:NAME`; the name of an added problem; the name of a built-in
    one; a file; `FILE#ROW` of a data set. Without `paths` only names mean anything, for whoever may not read files.

    Raises:
        BadProblem: nothing is meant, or what is meant is no reference.
    """
    if _KERNELBENCH_SPEC.fullmatch(spec):
        if settings.kernelbench is None:
            raise BadProblem(f"Problem {spec} needs a checkout of KernelBench; set DRKQ_KERNELBENCH or --kernelbench.")
        return load_kernelbench(settings.kernelbench, spec)
    builtin = builtin_files()
    named = {f"builtin:{name}": file for name, file in builtin.items()} | builtin | added_files(settings)
    if spec in named:
        return load_problem(named[spec])
    if not paths:
        raise _unknown(spec, list(named))
    return _load_path(spec, list(named))


def _load_path(spec: str, names: list[str]) -> Problem:
    path = Path(spec).expanduser()
    folder, hash_sign, row = spec.rpartition("#")
    if path.is_file() and path.suffix == ".py":
        return load_problem(path)
    if hash_sign and not path.exists():
        return load_row(Path(folder).expanduser(), row)
    if spec and path.is_dir():
        raise BadProblem(f"{spec} is a folder; name a file in it, or a row if it is a data set: '{spec}#0'.")
    if path.suffix in {".parquet", ".arrow"}:
        raise BadProblem(f"{spec} holds many problems; name one by its row, such as '{spec}#0'.")
    if path.suffix == ".py" or path.is_file() or os.sep in spec:
        return load_problem(path)
    raise _unknown(spec, names)


def _unknown(spec: str, names: list[str]) -> BadProblem:
    close = difflib.get_close_matches(spec, names, n=1)
    hint = f"did you mean `{close[0]}`?" if close else "`drkq problem list` shows what there is."
    return BadProblem(f"There is no problem `{spec}`; {hint}")
