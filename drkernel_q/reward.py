"""Reward of one evaluation: pure, replayable over stored facts, versioned.

Source: the article's multiplicative form, r = C + lambda * clip(S, 0, cap) * PR, with C in {0, 1} (correct and honest),
S the speedup and PR the profile ratio; everything that is not correct and honest earns 0.

A reward follows the verdict that the evaluation carries. Where the rules have changed since, give it
`evaluation.revised(drkernel_q.rules.judge(evaluation))`, or read it from the store with its latest verdict.
"""

from drkernel_q.audit import Audit
from drkernel_q.evaluation import Evaluation
from drkernel_q.value import Value


class RewardConfig(Value):
    """Numbers of the reward formula."""

    speed_weight: float = 1.0
    """lambda: weight of the speed term."""
    speedup_cap: float = 3.0
    """Speedups count up to this."""
    allow_downgrade: tuple[str, ...] = ()
    """Classes of products, such as `tf32`, whose speed counts although the problem asks for a more precise one; it is
    the speed over a reference of the same class."""


def reward(evaluation: Evaluation, config: RewardConfig | None = None, audit: Audit | None = None) -> float:
    """Return r = C * (1 + lambda * clip(S, 0, cap) * PR); a missing S or PR counts as 0.

    So does an S on a problem whose `audit`, on the same kind of device, says that speed is worth nothing, and without
    an audit an S so large that it needs one, and an S that was bought with less precise products than were asked for.
    """
    config = config or RewardConfig()
    if not evaluation.honest_and_correct:
        return 0.0
    counts = audit.speed_rewarded if audit is not None else not evaluation.needs_audit
    speedup = (evaluation.speedup or 0.0) if counts and _is_precise(evaluation, config) else 0.0
    ratio = (evaluation.profile.profile_ratio if evaluation.profile else None) or 0.0
    return 1.0 + config.speed_weight * min(max(speedup, 0.0), config.speedup_cap) * ratio


def _is_precise(evaluation: Evaluation, config: RewardConfig) -> bool:
    shown = evaluation.correctness
    return shown is None or not shown.downgraded or shown.precision_class in config.allow_downgrade
