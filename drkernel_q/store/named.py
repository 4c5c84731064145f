"""What a question to the store is: a name, SQL and parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that a query takes."""

    kind: type[str | int | float]
    sentence: str
    default: Value = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A question with a name."""

    name: str
    sentence: str
    sql: str
    """`judged AS evaluations` stands for the evaluations under the verdicts in force (`drkernel_q.store.verdict`),
    and `epoch(column)` for a time in seconds since 1970. Where a CROSS JOIN stands for an ordinary one, it keeps SQLite
    from another order of tables, which it would be slow in."""
    parameters: Mapping[str, Parameter]
    times: tuple[str, ...] = ()
    """Columns that are times."""


RUN = Parameter(str, "name of the run", required=True)
ANY_RUN = Parameter(str, "name of a run; all of them otherwise")
LIMIT = Parameter(int, "rows at most", default=20)
ANY_PROBLEM = Parameter(str, "name of a problem; all of them otherwise")
