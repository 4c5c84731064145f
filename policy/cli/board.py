"""Board: the turns of a search as they come, as a table that renews itself on a terminal and as lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drkernel_q.cli.output import printable, say
from drkernel_q.cli.verdict import ratio
from drkernel_q.evaluation import Evaluation, Integrity, Outcome
from policy.search.budget import Budget
from policy.search.scaling import Step

if TYPE_CHECKING:
    from rich.table import Table

Told = Callable[[str, Step], None]

#: Turns that the table shows at most: the latest.
SHOWN = 24
COLUMNS = ("problem", "chain", "turn", "outcome", "speedup", "own time", "reward", "best", "prompt", "answer")


@contextmanager
def board(budget: Budget) -> Iterator[Told]:
    """Show steps while a block runs; call what is yielded with the name of the problem and each step."""
    if not sys.stderr.isatty():
        yield lambda problem, step: say("   ".join(cells(problem, step)))
        return
    from rich.console import Console
    from rich.live import Live

    rows: list[tuple[str, ...]] = []
    start = time.monotonic()
    with Live(
        get_renderable=lambda: _table(rows, budget, time.monotonic() - start),
        console=Console(stderr=True),
        refresh_per_second=4,
        redirect_stdout=False,
    ):
        yield lambda problem, step: rows.append(cells(problem, step))


def outcome(evaluation: Evaluation | None, *, kernel: bool) -> str:
    """Return what became of a turn in a word or two."""
    if evaluation is None:
        return "not judged" if kernel else "no kernel"
    if evaluation.outcome is not Outcome.CORRECT or evaluation.integrity is Integrity.CLEAN:
        return evaluation.outcome.value
    return f"correct, {evaluation.integrity.value}"


def interval(evaluation: Evaluation | None) -> str:
    """Return a speedup with its interval; a dash where there is none."""
    timing = evaluation.timing if evaluation else None
    if timing is None:
        return "-"
    return f"{ratio(timing.speedup)}x [{ratio(timing.speedup_low)}, {ratio(timing.speedup_high)}]"


def cells(problem: str, step: Step) -> tuple[str, ...]:
    """Return a step as the cells of a row."""
    evaluation = step.turn.evaluation
    own = evaluation.profile_ratio if evaluation else None
    return (
        problem,
        str(step.chain),
        f"turn {step.turn.number}" + (" (stored)" if step.resumed else ""),
        outcome(evaluation, kernel=step.turn.kernel is not None),
        interval(evaluation),
        "-" if own is None else f"{own:.0%}",
        "-" if step.reward is None else f"reward {step.reward:.2f}",
        f"best {step.best:.2f}",
        f"{step.tokens.prompt} tokens" + (f" of turns {', '.join(map(str, step.held))}" if step.held else ""),
        f"{step.tokens.completion} tokens",
    )


def _table(rows: list[tuple[str, ...]], budget: Budget, seconds: float) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    spent = f"{budget.spent.prompt + budget.spent.completion:,} tokens, {seconds:.0f} s"
    cost = f", cost {budget.cost:.2f}" if budget.cost else ""
    table: Any = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"{len(rows)} turns, {spent}{cost}")
    for name in COLUMNS:
        table.add_column(Text(name))
    for row in rows[-SHOWN:]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table  # type: ignore[no-any-return]
