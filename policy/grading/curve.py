"""Curves: the numbers of several runs of each arm, step by step, with intervals over seeds; and figures of them.

A figure is written as data (CSV) and as a Vega-Lite document, which a browser, Altair or vl-convert draws.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from drkernel_q.speedup import student_t

#: Part of a run, from its end, whose steps are averaged where one number has to stand for it.
TAIL = 0.2
#: Name of a metric of the last turn, whichever that is in an arm.
LAST = "/last"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"

Row = Mapping[str, Any]


class Series(NamedTuple):
    """The record of one run."""

    arm: str
    seed: int
    turns: int
    """Turns of its trajectories."""
    rows: Sequence[Row]
    """What was written after each step: `step`, and metrics by name."""


class OverSeeds(NamedTuple):
    """A mean over seeds, and its 95 % interval (Student's t); without one where there is one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


class Point(NamedTuple):
    """One place of a curve."""

    arm: str
    x: int
    """Step or turn."""
    estimate: OverSeeds


class Panel(NamedTuple):
    """One picture of a figure."""

    figure: str
    """Number of the article's figure that it corresponds to."""
    title: str
    metric: str
    by: str = "step"
    """What is on the x axis: `step`, or `turn` (then `metric` is the name before `/turn_N`)."""
    bounds: tuple[float, float] = (0.0, math.inf)
    """Least and largest value that there can be; intervals are drawn no farther."""


_SHARE = (0.0, 1.0)
PANELS = (
    Panel("2", "hacks, share of evaluated", "rate/hack", bounds=_SHARE),
    Panel("2", "lazy, share of correct", "rate/lazy", bounds=_SHARE),
    Panel("4", "Fast@1, last turn", "fast_1/last", bounds=_SHARE),
    Panel("4", "Fast@1 by turn, end of training", "fast_1", "turn", _SHARE),
    Panel("4", "Fast@1 in validation, last turn", "validation/fast_1/last", bounds=_SHARE),
    Panel("4", "Fast@1 in validation by turn, end of training", "validation/fast_1", "turn", _SHARE),
    Panel("5", "Fast@1.2, last turn", "fast_1.2/last", bounds=_SHARE),
    Panel("5", "Fast@1.2 in validation, last turn", "validation/fast_1.2/last", bounds=_SHARE),
    Panel("5", "profile ratio of correct kernels", "pr/mean", bounds=_SHARE),
    Panel("5", "reward", "reward/mean", bounds=(-math.inf, math.inf)),
    Panel("7", "entropy, nat", "policy/entropy"),
    Panel("7", "gradient norm", "policy/grad_norm"),
    Panel("7", "perplexity, sampler", "mrs/ppl_sampler"),
    Panel("7", "perplexity, trainer", "mrs/ppl_train"),
)
#: Numbers of which people want to know how calm they are: the article's hypothesis of instability.
CALM = ("policy/entropy", "policy/grad_norm")


def estimate(values: Sequence[float]) -> OverSeeds:
    """Return the mean of one number a seed, with its interval."""
    if len(values) < 2:  # noqa: PLR2004 - one seed says nothing about the next
        return OverSeeds(fmean(values), None, None, len(values))
    reach = student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    mean = fmean(values)
    return OverSeeds(mean, mean - reach, mean + reach, len(values))


def curve(runs: Sequence[Series], panel: Panel, window: int = 1) -> list[Point]:
    """Return the points of a panel, arm after arm; each seed is averaged over the last `window` steps."""
    points = []
    for arm, same in _by_arm(runs).items():
        values: dict[int, list[float]] = {}
        for run in same:
            for x, value in _of_run(run, panel, window).items():
                values.setdefault(x, []).append(value)
        points += [Point(arm, x, estimate(values[x])) for x in sorted(values)]
    return points


def at_the_end(run: Series, metric: str) -> float | None:
    """Return a number's mean over the last fifth of a run's steps; None where it is never there."""
    found = list(_steps(run, metric).values())
    return fmean(found[-max(round(len(found) * TAIL), 1) :]) if found else None


def unrest(run: Series, metric: str) -> float | None:
    """Return how much a number moves from step to step: standard deviation of its noise, without its trend.

    Half the mean square of differences of neighbours estimates the variance of what is independent from step to step.
    """
    found = list(_steps(run, metric).values())
    squares = [(later - sooner) ** 2 for sooner, later in itertools.pairwise(found)]
    return math.sqrt(fmean(squares) / 2) if squares else None


def summary(runs: Sequence[Series]) -> dict[str, dict[str, dict[str, OverSeeds]]]:
    """Summarise each arm: its numbers at the end of training, and how they differ from the first arm's.

    Returns, by arm: `end` and `unrest` by metric; `difference`, of `end`, by metric, over seeds that both have, seed by
    seed; `first_gradient`, the norm of the first step's gradient over that of the first arm with the same seed: both
    have the same weights and, if they roll out alike, the same rollouts, so that it tells estimators apart.
    """
    arms = _by_arm(runs)
    metrics = dict.fromkeys(panel.metric for panel in PANELS if panel.by == "step")
    reference = {run.seed: run for run in next(iter(arms.values()), [])}
    found = {}
    for arm, same in arms.items():
        pairs = [(run, reference[run.seed]) for run in same if run.seed in reference]
        norms = [(_first(mine), _first(theirs)) for mine, theirs in pairs]
        ratios = [mine / theirs for mine, theirs in norms if mine is not None and theirs]
        found[arm] = {
            "end": _estimates({name: [at_the_end(run, name) for run in same] for name in metrics}),
            "unrest": _estimates({name: [unrest(run, name) for run in same] for name in CALM}),
            "difference": _estimates({name: [_difference(*pair, name) for pair in pairs] for name in metrics}),
            "first_gradient": _estimates({"policy/grad_norm": ratios}),
        }
    return found


def table(points: Mapping[Panel, Sequence[Point]]) -> list[tuple[Any, ...]]:
    """Return all points as rows of `COLUMNS`."""
    return [
        (panel.figure, panel.metric, panel.by, point.arm, point.x, *point.estimate)
        for panel, each in points.items()
        for point in each
    ]


#: Columns of `table`.
COLUMNS = ("figure", "metric", "by", "arm", "x", "mean", "low", "high", "seeds")


def drawing(points: Mapping[Panel, Sequence[Point]]) -> dict[str, Any]:
    """Return a Vega-Lite document of these panels, side by side, two in a row; bands are the intervals."""
    panels = [_panel(panel, each) for panel, each in points.items() if each]
    legend = {"orient": "top", "symbolOpacity": 1, "symbolType": "stroke", "labelLimit": 0}
    return {
        "$schema": SCHEMA,
        "concat": panels,
        "columns": 2,
        "config": {"view": {"stroke": None}, "background": "white", "legend": legend},
    }


def _panel(panel: Panel, points: Iterable[Point]) -> dict[str, Any]:
    values = [{"arm": each.arm, "x": each.x, **_within(each.estimate, panel.bounds)._asdict()} for each in points]
    x = {"field": "x", "type": "ordinal" if panel.by == "turn" else "quantitative", "title": panel.by}
    y = {"type": "quantitative", "title": panel.title, "scale": {"zero": False}}
    colour = {"color": {"field": "arm", "type": "nominal", "title": None, "sort": None}}
    band = {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, **colour}
    return {
        "width": 360,
        "height": 220,
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.15}, "encoding": band},
            {
                "mark": {"type": "line", "point": panel.by == "turn"},
                "encoding": {"x": x, "y": y | {"field": "mean"}, **colour},
            },
        ],
    }


def _within(found: OverSeeds, bounds: tuple[float, float]) -> OverSeeds:
    low, high = (None if end is None else min(max(end, bounds[0]), bounds[1]) for end in (found.low, found.high))
    return found._replace(low=low, high=high)


def _by_arm(runs: Sequence[Series]) -> dict[str, list[Series]]:
    arms: dict[str, list[Series]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    return arms


def _of_run(run: Series, panel: Panel, window: int) -> dict[int, float]:
    if panel.by == "turn":
        ends = {turn: at_the_end(run, f"{panel.metric}/turn_{turn}") for turn in range(1, run.turns + 1)}
        return {turn: value for turn, value in ends.items() if value is not None}
    steps = _steps(run, panel.metric)  # of validation there are few
    return {last: fmean(value for step, value in steps.items() if last - window < step <= last) for last in steps}


def _steps(run: Series, metric: str) -> dict[int, float]:
    """A number by step, where there is one."""
    name = f"{metric.removesuffix(LAST)}/turn_{run.turns}" if metric.endswith(LAST) else metric
    return {row["step"]: row[name] for row in run.rows if row.get(name) is not None}


def _first(run: Series) -> float | None:
    return _steps(run, "policy/grad_norm").get(1)


def _difference(mine: Series, theirs: Series, metric: str) -> float | None:
    ends = at_the_end(mine, metric), at_the_end(theirs, metric)
    return None if ends[0] is None or ends[1] is None else ends[0] - ends[1]


def _estimates(values: Mapping[str, Sequence[float | None]]) -> dict[str, OverSeeds]:
    known = {name: [value for value in each if value is not None] for name, each in values.items()}
    return {name: estimate(each) for name, each in known.items() if each}
