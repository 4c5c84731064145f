"""Curves, intervals over seeds, and figures, from what runs have written."""

import json
import math
import random

import pytest

from policy.grading.curve import (
    COLUMNS,
    PANELS,
    Panel,
    Series,
    at_the_end,
    curve,
    drawing,
    estimate,
    summary,
    table,
    unrest,
)


def a_series(arm: str, seed: int, values: list[float | None], metric: str = "reward/mean", turns: int = 3) -> Series:
    return Series(arm, seed, turns, [{"step": step, metric: value} for step, value in enumerate(values, start=1)])


REWARD = Panel("5", "reward", "reward/mean")


def test_an_interval_over_seeds_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high == pytest.approx(2.0 + 4.3027 / math.sqrt(3), rel=1e-4)
    assert found.low == pytest.approx(2.0 - 4.3027 / math.sqrt(3), rel=1e-4)
    assert estimate([5.0]) == (5.0, None, None, 1)


def test_an_interval_over_three_seeds_holds_the_truth_nineteen_times_in_twenty() -> None:
    chance = random.Random(0)
    found = [estimate([chance.gauss(1.0, 0.5) for _ in range(3)]) for _ in range(4000)]
    share = sum((each.low or 0) <= 1.0 <= (each.high or 0) for each in found) / len(found)
    assert share == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_a_curve_has_a_point_for_every_step_that_some_seed_has() -> None:
    runs = [a_series("a", 0, [1.0, 2.0, None, 4.0]), a_series("a", 1, [3.0, 4.0]), a_series("b", 0, [7.0])]
    points = curve(runs, REWARD)
    assert [(each.arm, each.x, each.estimate.mean, each.estimate.seeds) for each in points] == [
        ("a", 1, 2.0, 2),
        ("a", 2, 3.0, 2),
        ("a", 4, 4.0, 1),
        ("b", 1, 7.0, 1),
    ]
    smooth = curve(runs[:1], REWARD, window=2)
    assert [each.estimate.mean for each in smooth] == [1.0, 1.5, 4.0], "over the last two steps, as far as there are"


def test_no_interval_is_drawn_beyond_what_there_can_be() -> None:
    runs = [a_series("a", seed, [value], "rate/hack") for seed, value in enumerate((0.0, 0.1, 0.9))]
    panel = next(each for each in PANELS if each.metric == "rate/hack")
    points = curve(runs, panel)
    assert points[0].estimate.low is not None
    assert points[0].estimate.low < 0
    (drawn,) = drawing({panel: points})["concat"][0]["data"]["values"]
    assert (drawn["low"], drawn["high"]) == (0.0, 1.0)


def test_the_last_turn_is_that_of_the_arm() -> None:
    panel = Panel("4", "Fast@1", "fast_1/last")
    rows = [{"step": 1, "fast_1/turn_1": 0.25, "fast_1/turn_3": 0.5}]
    points = curve([Series("three", 0, 3, rows), Series("one", 0, 1, rows)], panel)
    assert [(each.arm, each.estimate.mean) for each in points] == [("three", 0.5), ("one", 0.25)]


def test_by_turn_at_the_end_of_training() -> None:
    rows = [{"step": step, "fast_1/turn_1": 0.0, "fast_1/turn_2": step / 10} for step in range(1, 11)]
    points = curve([Series("a", 0, 2, rows)], Panel("4", "by turn", "fast_1", "turn"))
    assert [(each.x, each.estimate.mean) for each in points] == [(1, 0.0), (2, pytest.approx(0.95))]


def test_unrest_is_noise_and_not_trend() -> None:
    chance = random.Random(1)
    noisy = [0.01 * step + chance.gauss(0, 0.3) for step in range(2000)]
    assert unrest(a_series("a", 0, noisy), "reward/mean") == pytest.approx(0.3, rel=0.1)  # type: ignore[arg-type]
    assert unrest(a_series("a", 0, [1.0]), "reward/mean") is None


def test_arms_are_compared_with_the_first_seed_by_seed() -> None:
    runs = [
        a_series("trloo", 0, [1.0] * 10, "policy/grad_norm"),
        a_series("trloo", 1, [3.0] * 10, "policy/grad_norm"),
        a_series("grpo", 1, [2.25] * 10, "policy/grad_norm"),
        a_series("grpo", 0, [0.75] * 10, "policy/grad_norm"),
    ]
    found = summary(runs)
    assert found["trloo"]["end"]["policy/grad_norm"].mean == 2.0
    assert found["grpo"]["difference"]["policy/grad_norm"].mean == pytest.approx(-0.5)
    assert found["grpo"]["first_gradient"]["policy/grad_norm"] == (0.75, 0.75, 0.75, 2)
    assert found["grpo"]["unrest"]["policy/grad_norm"].mean == 0.0
    assert "reward/mean" not in found["grpo"]["end"], "what nobody wrote is not there"


def test_at_the_end_is_the_last_fifth() -> None:
    assert at_the_end(a_series("a", 0, [0.0] * 8 + [1.0, 3.0]), "reward/mean") == 2.0
    assert at_the_end(a_series("a", 0, [5.0]), "reward/mean") == 5.0
    assert at_the_end(a_series("a", 0, []), "reward/mean") is None


def test_a_figure_holds_its_data_and_leaves_out_what_is_empty() -> None:
    runs = [a_series("a", seed, [1.0, 2.0 + seed]) for seed in range(2)]
    points = {panel: curve(runs, panel) for panel in PANELS}
    document = json.loads(json.dumps(drawing(points)))
    (panel,) = document["concat"]
    assert panel["layer"][1]["encoding"]["y"]["title"] == "reward"
    assert [value["mean"] for value in panel["data"]["values"]] == [1.0, 2.5]
    rows = table(points)
    assert [len(row) for row in rows] == [len(COLUMNS)] * 2
    assert rows[1][:6] == ("5", "reward/mean", "step", "a", 2, 2.5)
