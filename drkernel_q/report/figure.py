"""Figure: what a report draws of a run, each with the numbers behind it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drkernel_q.report.chart import Bar, bars, lines
from drkernel_q.report.facts import FOLLOWED, Facts, Rows
from drkernel_q.report.search import SPEEDUP, Curve

#: Codes of evidence that are followed over steps: those that were raised most often.
CODES = 6
#: Times that numbers are written out for, below a figure.
WRITTEN = 200
#: Figures over training steps: title, and the numbers of the record that it shows; shares are percent.
_TRAINING = (
    ("Reward", {"mean": "reward/mean"}, False),
    ("Entropy, nat", {"policy": "policy/entropy"}, False),
    ("Gradient norm", {"norm": "policy/grad_norm"}, False),
    ("Perplexity", {"sampler": "mrs/ppl_sampler", "trainer": "mrs/ppl_train"}, False),
    ("Kept by MRS and PRS", {"MRS": "mrs/acceptance", "PRS": "prs/acceptance"}, True),
)
#: Names in the record of the share of trajectories that reach a speedup: by the last turn, and by any turn.
_LAST, _BEST = "fast_{p:g}/turn_", "fast_{p:g}/best_of_"

_OF = {"last": "last turn", "best": "best so far"}
#: Units of time, seconds, and how many of them a run must last to be shown in them.
_UNITS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
_ENOUGH = 3

Points = Sequence[tuple[float, float]]


class Figure(NamedTuple):
    """A drawing and what it was drawn from."""

    title: str
    svg: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


def of_run(facts: Facts) -> list[Figure]:
    """Return the figures of one run; what there are no numbers for is left out."""
    figures = [
        *of_searches({facts.run.name: facts.search} if facts.search else {}),
        *(() if facts.search else _by_turn(facts.by_turn)),
        _fast_by_step(facts.record),
        *(_trained(facts.record, *each) for each in _TRAINING),
        *_verdicts(facts),
        _profiles(facts.profiles),
        *_use(facts.over_time),
    ]
    return [figure for figure in figures if figure is not None]


def of_searches(searches: Mapping[str, Sequence[Curve]]) -> list[Figure]:
    """Return the figures of several searches, by name: how far each has come after so many turns."""
    found = []
    for measure in dict.fromkeys(curve.measure for each in searches.values() for curve in each):
        series = {
            f"{name}, {_OF[curve.of]}" if len(searches) > 1 else _OF[curve.of]: curve.points
            for name, each in searches.items()
            for curve in each
            if curve.measure == measure
        }
        speed = measure == SPEEDUP
        title = "Best speedup so far, median of chains" if speed else f"{measure}, chains of a search"
        found.append(_curves(title, "turns", series, percent=not speed))
    return [figure for figure in found if figure is not None]


def _by_turn(by_turn: Mapping[float, Rows]) -> list[Figure | None]:
    named = {"Fast@p by turn": "fast_p", "Fast@p, best so far": "best_so_far"}
    return [
        _curves(
            title, "turn", {f"Fast@{p:g}": _points(rows, "turn", name) for p, rows in by_turn.items()}, percent=True
        )
        for title, name in named.items()
    ]


def _fast_by_step(record: Rows) -> Figure | None:
    series: dict[str, Points] = {}
    for p in FOLLOWED:
        for form, said in ((_LAST, "last turn"), (_BEST, "best turn")):
            prefix = form.format(p=p)
            name = max((each for row in record for each in row if each.startswith(prefix)), key=_number, default="")
            series[f"Fast@{p:g}, {said}"] = _points(record, "step", name)
    return _curves("Fast@p by step", "step", series, percent=True)


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0


def _trained(record: Rows, title: str, names: Mapping[str, str], percent: bool) -> Figure | None:
    series = {label: _points(record, "step", name) for label, name in names.items()}
    return _curves(title, "step", series, percent=percent)


def _verdicts(facts: Facts) -> list[Figure | None]:
    """Hacks and laziness over steps and over time, and what the hacks were."""
    named = {"rejected": "hack_rate", "lazy": "lazy_rate"}
    by_step = {label: _points(facts.by_step, "step", name) for label, name in named.items()}
    unit, timed = _timed(facts.over_time)
    over_time = {label: _points(timed, unit, name) for label, name in named.items()}
    return [
        _curves("Hacks and laziness by step", "step", by_step, percent=True),
        _codes(facts),
        _curves("Hacks and laziness over time", unit, over_time, percent=True),
    ]


def _codes(facts: Facts) -> Figure | None:
    evaluated = {row["step"]: row["evaluations"] for row in facts.by_step}
    often = list(dict.fromkeys(row["code"] for row in facts.evidence))[:CODES]
    raised = {(row["step"], row["code"]): row["evaluations"] for row in facts.evidence_by_step}
    series = {
        code: [(float(step), raised.get((step, code), 0) / count) for step, count in evaluated.items()]
        for code in often
        if facts.evidence_by_step
    }
    return _curves("Evidence by step, share of evaluations", "step", series)


def _profiles(rows: Rows) -> Figure | None:
    kernels: dict[str, list[Bar]] = {}
    for row in rows:
        title = f"{row['problem']}: {row['profile_ratio']:.1%} of the device time its own"
        kernels.setdefault(title, []).append(Bar(row["name"], row["device_us"], row["origin"] == "candidate"))
    title = "The laziest and the least lazy honest kernel, by device time"
    said = (
        f"{'laziest' if place == 0 and len(kernels) > 1 else 'least lazy'}: {name}"
        for place, name in enumerate(kernels)
    )
    panels = dict(zip(said, kernels.values(), strict=True))
    columns = ("kernel", "problem", "device time", "own")
    table = [(bar.name, name, f"{bar.value:.4g} us", bar.own) for name, each in panels.items() for bar in each]
    return Figure(title, bars(title, panels), columns, table) if panels else None


def _use(over_time: Rows) -> list[Figure | None]:
    unit, timed = _timed(over_time)
    series = {
        "kernels being judged": _points(timed, unit, "judging"),
        "requests without an answer": _points(timed, unit, "unanswered"),
        "workers of the run": _points(timed, unit, "workers"),
    }
    # A run that nobody kept the judges' time of has only requests to show.
    if not any(value for _, value in series["kernels being judged"]):
        del series["kernels being judged"]
    return [
        _curves("Devices and queue over time", unit, series if len(timed) > 1 else {}),
        _curves("Evaluations by time", unit, {"evaluations": _points(timed, unit, "evaluations")}),
    ]


def _timed(over_time: Rows) -> tuple[str, list[dict[str, Any]]]:
    """The rows with their times in a unit that suits how long the run took, and the unit."""
    longest = max((row["second"] for row in over_time), default=0.0)
    unit = next((unit for unit, seconds in _UNITS.items() if longest >= _ENOUGH * seconds), "seconds")
    return unit, [dict(row) | {unit: row["second"] / _UNITS[unit]} for row in over_time]


def _points(rows: Rows, x: str, y: str) -> list[tuple[float, float]]:
    return [(float(row[x]), float(row[y])) for row in rows if row.get(y) is not None]


def _curves(title: str, x: str, series: Mapping[str, Points], *, percent: bool = False) -> Figure | None:
    drawn = {name: points for name, points in series.items() if points}
    svg = lines(title, x, drawn, percent=percent)
    return Figure(title, svg, (x, *drawn), _table(drawn.values())) if svg else None


def _table(series: Iterable[Points]) -> list[tuple[Any, ...]]:
    """The points of several series side by side; of very many, evenly chosen ones."""
    columns = [dict(points) for points in series]
    places = sorted({x for column in columns for x in column})
    chosen = places[:: len(places) // WRITTEN + 1]
    return [(x, *(column.get(x) for column in columns)) for x in chosen]
