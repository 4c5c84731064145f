"""Which of the article's claims the runs of an ablation show: numbers by claim, with their intervals over seeds."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from policy.grading.curve import Series, at_the_end, estimate, unrest

Number = Callable[[Series], float | None]
#: Steps at the beginning that stand for the policy before it learned.
START = 3


def claims(runs: Sequence[Series]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the numbers of each claim, by its name; those of arms that were not trained are left out."""
    table = {
        "1 without the hack check": {
            "rate/hack, end - start": _alone(runs, "no-hack-check", _rise("rate/hack")),
            "rate/hack, end, against trloo": _apart(runs, "no-hack-check", "trloo", _end("rate/hack")),
            "Fast@1.2, end, against trloo": _apart(runs, "no-hack-check", "trloo", _end("fast_1.2/last")),
        },
        "2 TRLOO against GRPO": {
            "Fast@1.2, end": _apart(runs, "trloo", "grpo", _end("fast_1.2/last")),
            "Fast@1.2, mean of all steps": _apart(runs, "trloo", "grpo", _whole("fast_1.2/last")),
            "reward, end": _apart(runs, "trloo", "grpo", _end("reward/mean")),
            "first gradient of GRPO over TRLOO": _ratio(runs, "grpo", "trloo", _first("policy/grad_norm")),
        },
        "3 MRS against none": {
            "gradient norm, unrest": _apart(runs, "mrs", "trloo", lambda run: unrest(run, "policy/grad_norm")),
            "entropy, unrest": _apart(runs, "mrs", "trloo", lambda run: unrest(run, "policy/entropy")),
            "acceptance": _alone(runs, "mrs", _whole("mrs/acceptance")),
            "Fast@1.2, end": _apart(runs, "mrs", "trloo", _end("fast_1.2/last")),
        },
        "4 PR and PRS against MRS alone": {
            f"{title}, end, {arm}": _apart(runs, arm, "mrs", _end(metric))
            for arm in ("mrs-pr", "mrs-pr-prs")
            for title, metric in (("Fast@1.2", "fast_1.2/last"), ("PR", "pr/mean"), ("lazy", "rate/lazy"))
        },
        "5 credit over turns": {
            "Fast@1 of turn 1, end": _apart(runs, "trloo", "no-credit", _end("fast_1/turn_1")),
            "Fast@1.2 of turn 1, end": _apart(runs, "trloo", "no-credit", _end("fast_1.2/turn_1")),
            "reward of turn 1, end": _apart(runs, "trloo", "no-credit", _end("reward/turn_1")),
            "Fast@1.2, last turn, against one turn": _apart(runs, "trloo", "single-turn", _end("fast_1.2/last")),
        },
    }
    arms = dict.fromkeys(run.arm for run in runs)
    table["6 Fast@1.2 on held-out problems"] = {
        name: values
        for arm in arms
        for name, values in {
            f"{arm}, before": _alone(runs, arm, _first("validation/fast_1.2")),
            f"{arm}, after": _alone(runs, arm, _last("validation/fast_1.2")),
            f"{arm}, times": _alone(runs, arm, _times("validation/fast_1.2")),
        }.items()
    }
    table["share without facts"] = {arm: _alone(runs, arm, _whole("rate/infrastructure")) for arm in arms}
    found = {claim: {name: each for name, each in numbers.items() if each} for claim, numbers in table.items()}
    return {
        claim: {name: estimate(each)._asdict() | {"by_seed": each} for name, each in numbers.items()}
        for claim, numbers in found.items()
        if numbers
    }


def _alone(runs: Sequence[Series], arm: str, number: Number) -> list[float]:
    found = [number(run) for run in runs if run.arm == arm]
    return [value for value in found if value is not None]


def _apart(runs: Sequence[Series], arm: str, other: str, number: Number) -> list[float]:
    """Difference of two arms, seed by seed."""
    return [mine - theirs for mine, theirs in _pairs(runs, arm, other, number)]


def _ratio(runs: Sequence[Series], arm: str, other: str, number: Number) -> list[float]:
    return [mine / theirs for mine, theirs in _pairs(runs, arm, other, number) if theirs]


def _pairs(runs: Sequence[Series], arm: str, other: str, number: Number) -> list[tuple[float, float]]:
    mine = {run.seed: number(run) for run in runs if run.arm == arm}
    theirs = {run.seed: number(run) for run in runs if run.arm == other}
    both = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    return [(a, b) for a, b in both if a is not None and b is not None]


def _values(run: Series, metric: str) -> list[float]:
    name = f"{metric.removesuffix('/last')}/turn_{run.turns}" if metric.endswith("/last") else metric
    return [row[name] for row in run.rows if row.get(name) is not None]


def _end(metric: str) -> Number:
    return lambda run: at_the_end(run, metric)


def _whole(metric: str) -> Number:
    return lambda run: fmean(values) if (values := _values(run, metric)) else None


def _first(metric: str) -> Number:
    return lambda run: values[0] if (values := _values(run, metric)) else None


def _last(metric: str) -> Number:
    return lambda run: values[-1] if (values := _values(run, metric)) else None


def _rise(metric: str) -> Number:
    def rise(run: Series) -> float | None:
        values, end = _values(run, metric), at_the_end(run, metric)
        return None if end is None or not values else end - fmean(values[:START])

    return rise


def _times(metric: str) -> Number:
    return lambda run: values[-1] / values[0] if len(values := _values(run, metric)) > 1 and values[0] else None
