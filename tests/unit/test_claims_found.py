"""What is said of the claims: numbers by claim over seeds, from what runs have written."""

import pytest

from benchmarks.claims.found import claims
from policy.grading.curve import Series


def a_run(arm: str, seed: int, *, end: float, hack: float = 0.1, steps: int = 10) -> Series:
    rows = [
        {
            "step": step,
            "fast_1.2/turn_2": 0.1 + (end - 0.1) * (step - 1) / (steps - 1),
            "rate/hack": 0.1 + (hack - 0.1) * (step - 1) / (steps - 1),
            "policy/grad_norm": (0.75 if arm == "grpo" else 1.0) * step,
            "rate/infrastructure": 0.05,
        }
        for step in range(1, steps + 1)
    ]
    before = {"step": 0, "validation/fast_1.2": 0.1 + seed / 1000}
    return Series(
        arm, seed, 2, [before, *rows, {"step": steps, "validation/fast_1.2": 2 * before["validation/fast_1.2"]}]
    )


def test_arms_are_compared_seed_by_seed_and_what_was_not_trained_is_left_out() -> None:
    arms = {"trloo": (0.5, 0.1), "grpo": (0.4, 0.1), "no-hack-check": (0.3, 0.6)}
    runs = [
        a_run(arm, seed, end=end + seed / 100, hack=hack) for arm, (end, hack) in arms.items() for seed in (0, 1, 2)
    ]
    found = claims(runs)
    assert "5 credit over turns" not in found
    hacks = found["1 without the hack check"]
    assert hacks["rate/hack, end - start"]["mean"] > 0.3
    assert hacks["rate/hack, end, against trloo"]["low"] > 0
    assert hacks["Fast@1.2, end, against trloo"]["high"] < 0
    bias = found["2 TRLOO against GRPO"]
    assert bias["first gradient of GRPO over TRLOO"]["mean"] == pytest.approx(0.75)
    assert bias["Fast@1.2, end"]["by_seed"] == pytest.approx([bias["Fast@1.2, end"]["mean"]] * 3)
    assert bias["Fast@1.2, end"]["mean"] > 0
    assert found["6 Fast@1.2 on held-out problems"]["trloo, times"]["mean"] == pytest.approx(2)
    assert found["share without facts"]["grpo"]["mean"] == pytest.approx(0.05)


def test_one_seed_has_no_interval() -> None:
    found = claims([a_run("trloo", 0, end=0.5)])
    assert found["share without facts"]["trloo"] == {
        "mean": 0.05,
        "low": None,
        "high": None,
        "seeds": 1,
        "by_seed": [0.05],
    } | {"mean": pytest.approx(0.05), "by_seed": pytest.approx([0.05])}
