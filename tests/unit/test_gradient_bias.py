"""Monte Carlo: which advantages give the true policy gradient, and how far off the others are.

The module's own arithmetic on 100,000 groups would take minutes, so the formulas are written again for arrays, and
`test_the_arrays_say_the_same` holds them to the module.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from policy.method.advantage import AdvantageConfig, advantages

Array = NDArray[np.float64]

GROUPS = 100_000
#: Standard errors that an estimate may be off: 1 in 16,000 would fail by chance, and the seed is fixed.
ERRORS = 4.0


def leave_one_out(values: Array, present: Array, singleton: float) -> Array:
    """Of shape [groups, N]: the value less the mean of the others that are present, times `singleton` if alone."""
    count = present.sum(axis=1, keepdims=True)
    others = (values * present).sum(axis=1, keepdims=True) - values * present
    return np.where(count > 1, values - others / np.maximum(count - 1, 1), singleton * values) * present


def mean_centred(values: Array, present: Array) -> Array:
    count = np.maximum(present.sum(axis=1, keepdims=True), 1)
    return (values - (values * present).sum(axis=1, keepdims=True) / count) * present


ESTIMATORS: dict[str, tuple[AdvantageConfig, Callable[[Array, Array], Array]]] = {
    "trloo": (AdvantageConfig(), lambda values, present: leave_one_out(values, present, 1.0)),
    "zero": (AdvantageConfig(singleton="zero"), lambda values, present: leave_one_out(values, present, 0.0)),
    "grpo": (AdvantageConfig(kind="grpo"), mean_centred),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_arrays_say_the_same(name: str) -> None:
    config, formula = ESTIMATORS[name]
    chance = np.random.default_rng(0)
    values, present = chance.normal(size=(200, 5)), chance.random((200, 5)) < 0.5
    found = formula(values, present.astype(float))
    for row, there, expected in zip(values, present, found, strict=True):
        group = advantages([[float(v) if p else None] for v, p in zip(row, there, strict=True)], config)
        assert [each[0] or 0.0 for each in group] == pytest.approx(list(expected), abs=1e-12)


def ratio_to_truth(per_group: Array, truth: Array) -> tuple[float, float]:
    """Mean length of gradients [groups, dimensions] along the true one, as a share of it, and its standard error."""
    along = per_group @ truth / (truth @ truth)
    return float(along.mean()), float(along.std() / np.sqrt(len(along)))


def bandit(name: str, rollouts: int, chance: np.random.Generator) -> tuple[float, float]:
    """Three arms, softmax policy: gradient of the logits over the exact one, p * (r - p.r)."""
    policy, rewards = np.array([0.2, 0.5, 0.3]), np.array([1.0, 0.2, 3.0])
    truth = policy * (rewards - policy @ rewards)
    arms = chance.choice(3, size=(400_000 // rollouts, rollouts), p=policy)
    advantage = ESTIMATORS[name][1](rewards[arms], np.ones(arms.shape))
    score = np.eye(3)[arms] - policy
    return ratio_to_truth(np.einsum("gn,gnd->gd", advantage, score) / rollouts, truth)


@pytest.mark.parametrize("rollouts", [2, 4, 16])
def test_grpo_shrinks_the_gradient_of_a_bandit_and_trloo_does_not(rollouts: int) -> None:
    for name, expected in {"grpo": (rollouts - 1) / rollouts, "trloo": 1.0}.items():
        found, error = bandit(name, rollouts, np.random.default_rng(rollouts))
        assert found == pytest.approx(expected, abs=ERRORS * error), name
        assert error < 0.01


#: In a process of two turns, how likely a first turn is to end it, by action, and what it pays.
STOP, FIRST = np.array([0.9, 0.3]), np.array([0.5, 0.0])
#: What the second turn pays, by action.
SECOND = np.array([1.0, 3.0])
START, LATER = np.array([0.6, 0.4]), np.array([0.7, 0.3])


def two_turns(name: str, rollouts: int, chance: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Gradients of both turns' logits over the exact ones."""
    shape = (GROUPS, rollouts)
    first = (chance.random(shape) < START[1]).astype(int)
    goes_on = chance.random(shape) >= STOP[first]
    second = (chance.random(shape) < LATER[1]).astype(int)
    later = SECOND[second] * goes_on
    values = {"first": FIRST[first] + later, "second": later}
    present = {"first": np.ones(shape), "second": goes_on.astype(float)}
    scores = {"first": np.eye(2)[first] - START, "second": np.eye(2)[second] - LATER}
    worth = FIRST + (1 - STOP) * (LATER @ SECOND)
    reach = START @ (1 - STOP)
    truth = {"first": START * (worth - START @ worth), "second": reach * LATER * (SECOND - LATER @ SECOND)}
    formula = ESTIMATORS[name][1]
    return {
        turn: ratio_to_truth(
            np.einsum("gn,gnd->gd", formula(values[turn], present[turn]), scores[turn]) / rollouts, truth[turn]
        )
        for turn in truth
    }


def test_with_early_ends_only_the_raw_singleton_is_unbiased() -> None:
    rollouts = 4
    reach = float(START @ (1 - STOP))
    alone = (1 - reach) ** (rollouts - 1)
    others = [reach**k * (1 - reach) ** (rollouts - 1 - k) * [1, 3, 3, 1][k] * k / (k + 1) for k in range(rollouts)]
    expected = {"trloo": 1.0, "zero": 1 - alone, "grpo": sum(others)}
    for name, factor in expected.items():
        found = two_turns(name, rollouts, np.random.default_rng(7))
        value, error = found["second"]
        assert value == pytest.approx(factor, abs=ERRORS * error), name
        value, error = found["first"]
        assert value == pytest.approx(0.75 if name == "grpo" else 1.0, abs=ERRORS * error), name
    assert expected["zero"] < 0.75, "the case is one in which it matters"
    assert expected["grpo"] < 0.5


def rejecting_bandit(baseline: str, chance: np.random.Generator) -> tuple[Array, Array]:
    """Mean gradient and its variance where one arm is often rejected; the baseline of 8 is that of all or of kept."""
    policy, rewards, keep = np.array([0.4, 0.4, 0.2]), np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.1, 1.0])
    arms = chance.choice(3, size=(GROUPS, 8), p=policy)
    kept = (chance.random(arms.shape) < keep[arms]).astype(float)
    values = rewards[arms]
    counted = np.ones_like(kept) if baseline == "all" else kept
    others = counted.sum(axis=1, keepdims=True) - counted
    mean = ((values * counted).sum(axis=1, keepdims=True) - values * counted) / np.maximum(others, 1)
    gradients = np.einsum("gn,gnd->gd", kept * (values - mean), np.eye(3)[arms] - policy) / 8
    return gradients.mean(axis=0), gradients.var(axis=0) / GROUPS


def test_a_baseline_of_all_gives_the_gradient_of_the_reward_over_its_mean() -> None:
    policy, rewards, keep = np.array([0.4, 0.4, 0.2]), np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.1, 1.0])

    def exact(baseline: float) -> Array:
        worth = keep * (rewards - baseline)
        return policy * (worth - policy @ worth)

    found, variance = rejecting_bandit("all", np.random.default_rng(3))
    assert np.all(np.abs(found - exact(policy @ rewards)) < ERRORS * np.sqrt(variance))
    of_kept, variance_of_kept = rejecting_bandit("kept", np.random.default_rng(3))
    kept_mean = float(policy @ (keep * rewards) / (policy @ keep))
    assert np.all(np.abs(of_kept - exact(kept_mean)) < ERRORS * np.sqrt(variance_of_kept) + 1e-3)
    assert variance.sum() < variance_of_kept.sum()
