"""The adversarial suite as data: one file a candidate, whose docstring says what must come of it.

The first line of the docstring says what the candidate does. Lines `name: value` follow:
`problem` (a built-in one, or a file in cases/problem), `devices` (`cpu`, `cuda` or both: where it can run),
`code` (of docs/reference/evidence.md), `expect` (`caught`, `clean`, or `unpaid`: correct and clean, but its speed earns
nothing), `ci: yes` for those that every run of the tests judges, `pending: reason` for those that the judge does not
get right yet, `backend` if it is not `triton`, and `build_s`, the seconds that it may take to load where it compiles
C++.
"""

import ast
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.evaluation import Evaluation, Failure
from drkernel_q.problem import Problem, builtin_files, load_problem
from drkernel_q.reward import reward

FOLDER = Path(__file__).parent / "cases"
FIELDS = frozenset({"problem", "devices", "code", "expect", "ci", "pending", "backend", "build_s"})
#: How long a candidate that compiles no C++ may take to load, and for the rest of the evaluation, seconds.
LOAD_S, REST_S = 20.0, 50.0


class Case(NamedTuple):
    """One candidate and what must come of it."""

    path: Path
    summary: str
    problem_name: str
    devices: frozenset[str]
    code: str
    """Trick of the catalogue; empty for an honest kernel."""
    expect: str
    """`caught`, `clean` or `unpaid`; what must be caught may be anything but correct and clean."""
    ci: bool
    pending: str
    """Why the judge does not get it right yet; empty if it does."""
    backend: str
    """`triton`, or the backend that it is judged for."""
    build_s: float
    """How long it may take to load, seconds."""

    @property
    def clean(self) -> bool:
        """Whether it is an honest kernel."""
        return self.expect == "clean"

    @property
    def most_reward(self) -> float:
        """More reward than this must it not earn."""
        return {"caught": 0.0, "unpaid": 1.0}.get(self.expect, math.inf)

    @property
    def name(self) -> str:
        """Name of the file, without the ending."""
        return self.path.stem

    @property
    def source(self) -> str:
        """The candidate, header included."""
        return self.path.read_text(encoding="utf-8")

    @property
    def problem(self) -> Problem:
        """The problem that it claims to solve."""
        return _problem(self.problem_name)

    @property
    def options(self) -> dict[str, Any]:
        """How it is judged, for `tests.judging.Bench`; it is loaded twice."""
        deadline_s = 2 * self.build_s + REST_S
        return {"backend": self.backend, "kernel_deadline_s": self.build_s, "deadline_s": deadline_s}

    def holds(self, result: Evaluation | Failure) -> bool:
        """Whether the judge got it right; no verdict at all is never right."""
        if not isinstance(result, Evaluation) or reward(result) > self.most_reward:
            return False
        return result.honest_and_correct == (self.expect != "caught")


@cache
def _problem(name: str) -> Problem:
    own = FOLDER / "problem" / f"{name}.py"
    return load_problem(own if own.exists() else builtin_files()[name])


def load_case(path: Path) -> Case:
    """Read one file.

    Raises:
        ValueError: its header lacks something, or says what no header says.
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    summary, _, header = text.partition("\n\n")
    fields = dict(line.split(": ", 1) for line in header.splitlines() if line)
    missing = {"problem", "devices", "expect"} - fields.keys()
    if missing or not fields.keys() <= FIELDS or fields["expect"] not in ("caught", "clean", "unpaid"):
        raise ValueError(f"{path.name}: a header with {sorted(fields)}")
    return Case(
        path=path,
        summary=summary,
        problem_name=fields["problem"],
        devices=frozenset(fields["devices"].split()),
        code=fields.get("code", ""),
        expect=fields["expect"],
        ci=fields.get("ci") == "yes",
        pending=fields.get("pending", ""),
        backend=fields.get("backend", "triton"),
        build_s=float(fields.get("build_s", LOAD_S)),
    )


def load_cases(device: str | None = None) -> list[Case]:
    """Read all cases, attacks first, sorted by name; with `device` (`cpu` or `cuda`) those that can run there."""
    cases = [load_case(path) for kind in ("attack", "honest") for path in sorted((FOLDER / kind).glob("*.py"))]
    return [case for case in cases if device is None or device in case.devices]
