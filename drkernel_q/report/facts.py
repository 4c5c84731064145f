"""What a report shows: answers to named queries, and the record that a training run keeps in its folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q import record
from drkernel_q.errors import BadInput
from drkernel_q.report.search import Curve, Turns, curves
from drkernel_q.store import Store
from drkernel_q.store.query import ask
from drkernel_q.store.run import Run

#: Speedups whose shares are shown by turn; each is a question over all turns of the run.
FOLLOWED = (1.0, 1.2)
#: Best kernels, examples of lazy ones, and problems that are shown of a run.
BEST, LAZY, PROBLEMS = 20, 3, 20
#: Turns of a search that curves are drawn from, at most.
TURNS = 200_000
#: Kind of the runs that are searches.
SEARCH = "stts"

Rows = Sequence[Mapping[str, Any]]


class Facts(NamedTuple):
    """Everything on the page about one run."""

    run: Run
    rates: Mapping[str, Any]
    by_turn: Mapping[float, Rows]
    """Fast@p by turn, by p."""
    by_step: Rows
    over_time: Rows
    by_problem: Rows
    evidence: Rows
    evidence_by_step: Rows
    examples: Rows
    """Of each code of evidence an evaluation, with the kernel."""
    lazy: Rows
    """The laziest kernels."""
    best: Rows
    profiles: Rows
    """Device time by kernel of the laziest and of the least lazy honest kernel."""
    record: Rows
    """Numbers by training step; empty for other runs."""
    search: Sequence[Curve]
    """Curves of a search; empty for other runs."""


def gather(store: Store, name: str, folder: Path) -> Facts:
    """Ask for everything about a run; `folder` is where it keeps its record, if it keeps one.

    Raises:
        BadInput: there is no such run.
    """
    run = store.run(name)
    if run is None:
        raise BadInput(f"There is no run named `{name}`; `drkq run list` shows what there is.")

    def answer(query: str, **values: Any) -> list[dict[str, Any]]:
        return _answer(store, query, run=name, **values)

    (rates,) = answer("rates")
    return Facts(
        run=run,
        rates=rates,
        by_turn={p: answer("fast-p", p=p) for p in FOLLOWED},
        by_step=[row for row in answer("rates-by-step") if row["step"] is not None],
        over_time=answer("over-time"),
        by_problem=answer("rates-by-problem")[:PROBLEMS],
        evidence=answer("evidence"),
        evidence_by_step=[row for row in answer("evidence-by-step") if row["step"] is not None],
        examples=answer("evidence-examples"),
        lazy=answer("lazy-kernels", limit=LAZY),
        best=answer("best-turns", limit=BEST),
        profiles=answer("lazy-and-fused"),
        record=record.read(folder / record.FILE),
        search=_search(run, answer),
    )


def runs(store: Store, limit: int) -> list[dict[str, Any]]:
    """What runs there are, newest first."""
    return _answer(store, "runs", limit=limit)


def _search(run: Run, answer: Callable[..., list[dict[str, Any]]]) -> Sequence[Curve]:
    if run.kind != SEARCH:
        return ()
    chains: dict[tuple[str, int], Turns] = {}
    for row in answer("turns", limit=TURNS):
        honest = row["outcome"] == "correct" and row["integrity"] == "clean"
        chains.setdefault((row["problem"], row["trajectory"]), []).append(row["speedup"] or 0.0 if honest else None)
    return curves(list(chains.values()), FOLLOWED)


def _answer(store: Store, query: str, **values: Any) -> list[dict[str, Any]]:
    with ask(store, query, values) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
