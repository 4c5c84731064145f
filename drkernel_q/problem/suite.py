"""Suites: whole sets of problems by one name."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from drkernel_q.errors import BadProblem
from drkernel_q.problem.catalogue import builtin_files, kernelbench_files
from drkernel_q.problem.file import load_problem
from drkernel_q.problem.reference import Problem

if TYPE_CHECKING:
    from drkernel_q.settings import Settings

_BUILTIN, _KERNELBENCH = "builtin", "kernelbench/"
#: What `all` stands for: of KernelBench single operators and short sequences of them.
_ALL = (_BUILTIN, "kernelbench/1", "kernelbench/2")
SUITES = (_BUILTIN, *(f"{_KERNELBENCH}{level}" for level in range(1, 5)), "all")


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
