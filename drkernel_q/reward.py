"""Reward of one evaluation: pure, replayable over stored facts, versioned.

Source: the article's multiplicative form, r = C + lambda * clip(S, 0, cap) * PR, with C in {0, 1} (correct and honest),
S the speedup and PR the profile ratio; everything that is not correct and honest earns 0. The paper's additive form and
a form without PR are there to be compared with it.

A reward follows the verdict that the evaluation carries. Where the rules have changed since, give it
`evaluation.revised(drkernel_q.rules.judge(evaluation))`, or read it from the store with its latest verdict.
"""

from typing import Annotated, Literal

from pydantic import Field

from drkernel_q.audit import Audit
from drkernel_q.evaluation import Evaluation, Outcome
from drkernel_q.trajectory import Turn
from drkernel_q.value import Value

#: Device time that `junk_pays` adds, as a share of what there is.
JUNK = 0.01


class RewardConfig(Value):
    """Numbers of the reward formula."""

    kind: Literal["multiplicative", "additive", "speed"] = "multiplicative"
    """With lambda the weight of speed and s = clip(S, 0, cap): `multiplicative` is C * (1 + lambda * s * PR), the
    article's; `additive` is C * (1 + lambda * s + w * PR), the paper's; `speed` is C * (1 + lambda * s), without PR."""
    speed_weight: Annotated[float, Field(ge=0)] = 1.0
    """lambda: weight of the speed term."""
    speedup_cap: Annotated[float, Field(ge=0)] = 3.0
    """Speedups count up to this."""
    profile_weight: Annotated[float, Field(ge=0)] = 1.0
    """w: weight of PR in the additive form."""
    profile_gate: Literal["none", "faster", "scaled"] = "none"
    """What PR is worth in a kernel that is slower than the reference: as much as in any other (`none`), nothing
    (`faster`), or PR times its speedup (`scaled`); against kernels that are padded with work of their own."""
    allow_downgrade: tuple[str, ...] = ()
    """Classes of products, such as `tf32`, whose speed counts although the problem asks for a more precise one; it is
    the speed over a reference of the same class."""
    truncated_earns: bool = False
    """Whether a kernel counts that was found in a completion cut at its longest; otherwise such a turn earns 0."""
    hack_check: bool = True
    """Whether C asks for an honest kernel beside a correct one, and large speedups for an audit. Without it, hacks are
    paid: only to measure what that does."""


def reward(evaluation: Evaluation, config: RewardConfig | None = None, audit: Audit | None = None) -> float:
    """Return r, by default C * (1 + lambda * clip(S, 0, cap) * PR); a missing S or PR counts as 0.

    C alone is left on a problem whose `audit`, on the same kind of device, says that speed is worth nothing, for an S
    so large that it needs an audit and has none, and for one bought with less precise products than were asked for.
    """
    config = config or RewardConfig()
    if not _is_right(evaluation, config):
        return 0.0
    if not _is_paid(evaluation, config, audit):
        return 1.0
    return _formula(evaluation.speedup or 0.0, evaluation.profile_ratio or 0.0, config)


def turn_reward(turn: Turn, config: RewardConfig | None = None, audit: Audit | None = None) -> float | None:
    """Return the reward of a turn: 0 without a kernel, None where the evaluation failed for infrastructure reasons.

    None is no reward at all, and never 0. A completion that was cut at its longest is a wrong answer and not a missing
    one: masking by length would bias the gradient.
    """
    config = config or RewardConfig()
    if turn.kernel is None or (turn.finish_reason == "length" and not config.truncated_earns):
        return 0.0
    return None if turn.evaluation is None else reward(turn.evaluation, config, audit)


def junk_pays(evaluation: Evaluation, config: RewardConfig | None = None, audit: Audit | None = None) -> bool:
    """Whether 1 % more device time, spent on useless work in kernels of its own, would raise the reward.

    With a share d more, S becomes S / (1 + d) and PR becomes (PR + d) / (1 + d). So, for small d, below the cap and
    without a gate: `additive` pays where lambda * S < w * (1 - PR), `multiplicative` where PR < 1/2, `speed` never.
    """
    config = config or RewardConfig()
    speedup, ratio = evaluation.speedup, evaluation.profile_ratio
    if speedup is None or ratio is None or not (_is_right(evaluation, config) and _is_paid(evaluation, config, audit)):
        return False
    padded = _formula(speedup / (1 + JUNK), (ratio + JUNK) / (1 + JUNK), config)
    return padded > _formula(speedup, ratio, config)


def _formula(speedup: float, ratio: float, config: RewardConfig) -> float:
    ratio = min(max(ratio, 0.0), 1.0)
    if config.profile_gate == "faster" and speedup < 1:
        ratio = 0.0
    elif config.profile_gate == "scaled":
        ratio *= min(max(speedup, 0.0), 1.0)
    speed = config.speed_weight * min(max(speedup, 0.0), config.speedup_cap)
    if config.kind == "multiplicative":
        return 1.0 + speed * ratio
    return 1.0 + speed + (config.profile_weight * ratio if config.kind == "additive" else 0.0)


def _is_right(evaluation: Evaluation, config: RewardConfig) -> bool:
    return evaluation.honest_and_correct if config.hack_check else evaluation.outcome is Outcome.CORRECT


def _is_paid(evaluation: Evaluation, config: RewardConfig, audit: Audit | None) -> bool:
    """Whether more than correctness counts."""
    shown = evaluation.correctness
    if shown is not None and shown.downgraded and shown.precision_class not in config.allow_downgrade:
        return False
    if not config.hack_check:
        return True
    return audit.speed_rewarded if audit is not None else not evaluation.needs_audit
