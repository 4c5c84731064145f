"""How runs and turns are shown: a head with rates, one turn whole, and differences."""

import json
from collections.abc import Mapping
from typing import Any

from drkernel_q.cli import verdict
from drkernel_q.cli.output import emit_json, emit_text
from drkernel_q.difference import before, kernel_diff, text_diff
from drkernel_q.errors import BadInput
from drkernel_q.feedback import feedback
from drkernel_q.metric import THRESHOLDS
from drkernel_q.store import Store
from drkernel_q.store.query import ask
from drkernel_q.store.run import Run
from drkernel_q.trajectory import Trajectory, Turn

#: Options of `drkq run show` that ask for turns.
FILTERS = ("outcome", "integrity", "faster_than", "lazier_than")


def show_run(store: Store, name: str) -> None:
    """Print what a run was announced as, its rates, and its Fast@p by turn."""
    run = _known(store, name)
    emit_text(f"run       {run.name} ({run.kind}), begun {run.created_at:%Y-%m-%d %H:%M} UTC")
    (rates,) = _answer(store, "rates", run=name)
    emit_text(
        f"kernels   {rates['evaluations']} evaluated, {rates['honest']} honest and correct, "
        f"{_share(rates['hack_rate'])} rejected, {_share(rates['lazy_rate'])} of the honest lazy"
    )
    by_turn = {p: _answer(store, "fast-p", run=name, p=p) for p in THRESHOLDS}
    for place, row in enumerate(by_turn[THRESHOLDS[0]]):
        shares = "  ".join(f"Fast@{p:g} {_share(by_turn[p][place]['fast_p'])}" for p in THRESHOLDS)
        emit_text(f"turn {row['turn']:<4} {shares}")
    emit_text("")


def show_turn(store: Store, run: str, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one turn: what the model was shown if asked for, its kernel or the diff to the one before, its verdict.

    Raises:
        BadInput: there is no such turn, or several.
    """
    problem, number, trajectory = _chosen(store, run, options)
    turn = next((turn for turn in trajectory.turns if turn.number == options["turn"]), None)
    if turn is None:
        raise BadInput(f"Trajectory {number} of {problem} has {len(trajectory.turns)} turns.")
    if as_json:
        emit_json({"run": run, "problem": problem, "trajectory": number, **turn.model_dump(mode="json")})
        return
    emit_text(f"{problem}   trajectory {number}   turn {turn.number} of {len(trajectory.turns)}   {_line(turn)}")
    if options["prompt"]:
        for message in turn.prompt:
            emit_text(f"\n--- {message.role}\n{message.content}")
    emit_text("")
    if options["diff"]:
        emit_text("\n".join(kernel_diff(before(trajectory, turn), turn)) or "The kernel did not change.")
    else:
        emit_text(turn.kernel.source if turn.kernel else turn.completion)
    if turn.evaluation is not None:
        emit_text(f"\n--- what its author was told\n{feedback(turn.evaluation)}")


def show_difference(store: Store, run: str, other: str, problem: str | None) -> None:
    """Print how the settings of two runs differ, and the best kernels of each problem.

    Raises:
        BadInput: there is no such run.
    """
    for text in text_diff(_settings(store, run), _settings(store, other)):
        emit_text(text)
    bests = [_best_sources(store, name, problem) for name in (run, other)]
    for place in sorted({*bests[0], *bests[1]}):
        one, two = (
            (f"{name}: {' on '.join(place)}", best.get(place, ""))
            for name, best in zip((run, other), bests, strict=True)
        )
        for text in text_diff(one, two):
            emit_text(text)


def _settings(store: Store, name: str) -> tuple[str, str]:
    return f"{name}: settings", json.dumps(_known(store, name).settings, indent=2, sort_keys=True, default=str)


def _known(store: Store, name: str) -> Run:
    found = store.run(name)
    if found is None:
        raise BadInput(f"There is no run named `{name}`; `drkq run list` shows what there is.")
    return found


def _best_sources(store: Store, run: str, problem: str | None) -> dict[tuple[str, str], str]:
    found = _answer(store, "best-of-run", run=run, problem=problem)
    return {(row["problem"], row["device_kind"]): row["source"] for row in found}


def _answer(store: Store, name: str, **values: Any) -> list[dict[str, Any]]:
    with ask(store, name, values) as answer:
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def _chosen(store: Store, run: str, options: Mapping[str, Any]) -> tuple[str, int, Trajectory]:
    """Find the one trajectory that is meant."""
    found = _answer(store, "trajectories", run=run, problem=options["problem"])
    problems = sorted({row["problem"] for row in found})
    if len(problems) != 1:
        what = f"it has {', '.join(problems[:5])}" if problems else "it has no trajectory of that"
        raise BadInput(f"Name one problem of the run `{run}` by --problem; {what}.")
    number = options["trajectory"] or 1
    trajectory = store.trajectory(run, problems[0], number, revised=True)
    if trajectory is None:
        raise BadInput(f"The run `{run}` has {len(found)} trajectories of {problems[0]}, and none of number {number}.")
    return problems[0], number, trajectory


def _line(turn: Turn) -> str:
    if turn.evaluation is None:
        return "no kernel" if turn.kernel is None else "not evaluated"
    return "   ".join(verdict.summary(turn.evaluation))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
