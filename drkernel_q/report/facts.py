"""What a report shows of a run: answers to named queries, and the record that a training run keeps in its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.errors import BadInput
from drkernel_q.record import read
from drkernel_q.store import Store
from drkernel_q.store.query import ask
from drkernel_q.store.run import Run

#: Speedups whose shares are shown by turn; each is a question over all turns of the run.
FOLLOWED = (1.0, 1.2)

Rows = Sequence[Mapping[str, Any]]


class Facts(NamedTuple):
    """Everything on the page."""

    run: Run
    rates: Mapping[str, Any]
    by_turn: Mapping[float, Rows]
    """Fast@p by turn, by p."""
    by_step: Rows
    by_problem: Rows
    evidence: Rows
    best: Rows
    profiles: Rows
    """Device time by kernel of the laziest and of the least lazy honest kernel."""
    record: Rows
    """Numbers by training step; empty for other runs."""


def gather(store: Store, name: str, record: Path) -> Facts:
    """Ask for everything; `record` is where the run keeps its numbers by step, if it keeps them.

    Raises:
        BadInput: there is no such run.
    """
    run = store.run(name)
    if run is None:
        raise BadInput(f"There is no run named `{name}`; `drkq run list` shows what there is.")
    (rates,) = _answer(store, "rates", run=name)
    return Facts(
        run=run,
        rates=rates,
        by_turn={p: _answer(store, "fast-p", run=name, p=p) for p in FOLLOWED},
        by_step=[row for row in _answer(store, "rates-by-step", run=name) if row["step"] is not None],
        by_problem=_answer(store, "rates-by-problem", run=name),
        evidence=_answer(store, "evidence", run=name),
        best=_answer(store, "best-of-run", run=name),
        profiles=_answer(store, "lazy-and-fused", run=name),
        record=read(record),
    )


def _answer(store: Store, name: str, **values: Any) -> list[dict[str, Any]]:
    with ask(store, name, values) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
