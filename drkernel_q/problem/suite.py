"""Suites: whole sets of problems by one name."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drkernel_q.errors import BadProblem
from drkernel_q.problem.catalogue import BUILTIN, builtin_files, find_problem, kernelbench_files
from drkernel_q.problem.file import load_folder, load_problem
from drkernel_q.problem.reference import Problem

if TYPE_CHECKING:
    from drkernel_q.settings import Settings

_BUILTIN, _LEVEL, _KERNELBENCH = "builtin", "builtin/", "kernelbench/"
#: What `all` stands for: of KernelBench single operators and short sequences of them.
_ALL = (_BUILTIN, "kernelbench/1", "kernelbench/2")
SUITES = (
    _BUILTIN,
    *(f"{_LEVEL}{level}" for level in range(1, 4)),
    *(f"{_KERNELBENCH}{level}" for level in range(1, 5)),
    "all",
)


def load_suite(name: str, settings: "Settings", refused: Callable[[str], None]) -> Iterator[Problem]:
    """Load the problems of one of `SUITES`; `refused` hears why a file of KernelBench is none.

    Raises:
        BadProblem: there is no checkout of KernelBench.
    """
    if name == "all":
        for part in _ALL:
            yield from load_suite(part, settings, refused)
    elif name == _BUILTIN:
        yield from map(load_problem, builtin_files().values())
    elif name.startswith(_LEVEL):
        yield from load_folder(BUILTIN / f"level{name.removeprefix(_LEVEL)}")
    else:
        if settings.kernelbench is None:
            raise BadProblem(f"{name} needs a checkout of KernelBench; set DRKQ_KERNELBENCH or --kernelbench.")
        level = name.removeprefix(_KERNELBENCH) + "/"
        for title, file in kernelbench_files(settings.kernelbench).items():
            if title.startswith(level):
                try:
                    yield load_problem(file, name=title)
                except BadProblem as error:
                    refused(str(error))


def find_problems(names: Iterable[str], settings: "Settings") -> list[Problem]:
    """Find what each name stands for: one of `SUITES`, a folder, or whatever `find_problem` knows; each problem once.

    Raises:
        BadProblem: a name stands for nothing, or for what is no reference.
    """
    found: dict[str, Problem] = {}
    for name in names:
        if name in SUITES:
            several = list(load_suite(name, settings, lambda _: None))
        elif Path(name).expanduser().is_dir():
            several = load_folder(Path(name).expanduser())
        else:
            several = [find_problem(name, settings)]
        found |= {problem.hash: problem for problem in several}
    return list(found.values())
