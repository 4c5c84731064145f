"""Profiling-based rejection sampling (PRS): leave out, by chance, correct kernels that do little of the work.

For a turn whose kernel is correct and honest and has a profile ratio R,

    exp     P_keep = exp(-max(tau - R, 0) / sigma)       (the article, 6.3)
    linear  P_keep = clip((R - tau) / sigma, 0, 1)       (the paper, and its released code)

with tau = 0.3 and sigma = 0.1; sigma = 0 is a threshold. Every other turn is kept: to give wrong kernels a ratio of 0
would reject nearly all bad examples, and turn the gradient. A turn that is rejected is not learned from; its reward
still counts in the returns of the turns before it and in the baseline of others.

The draw depends on the run's seed, the trajectory and the turn, and on nothing else, so that it is the same after a
resume, in another batch and on another rank.
"""

import hashlib
import math
from typing import Annotated, Literal

from pydantic import Field

from drkernel_q.evaluation import Evaluation
from drkernel_q.value import Value

#: Bits of a draw: as many as a float holds exactly.
BITS = 53


class LazinessConfig(Value):
    """Which correct kernels count as lazy."""

    enabled: bool = True
    """Whether anything is rejected."""
    kind: Literal["exp", "linear"] = "exp"
    """The formula of the probability; see `policy.method.laziness`."""
    tau: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Profile ratio from which `exp` keeps every kernel, and up to which `linear` keeps none."""
    sigma: Annotated[float, Field(ge=0)] = 0.1
    """How soft the filter is."""


class LazinessDecision(Value):
    """Whether a turn is kept; stored with the turn."""

    probability: float
    """P_keep."""
    drawn: float
    """The draw, uniform in [0, 1)."""
    kept: bool
    """Whether the draw is below the probability."""
    missing: bool = False
    """Whether a correct and honest kernel has no profile ratio, and was kept for that."""


def keep_probability(profile_ratio: float, config: LazinessConfig | None = None) -> float:
    """Return P_keep of a correct and honest kernel with this profile ratio, 0 to 1."""
    config = config or LazinessConfig()
    if config.kind == "linear":
        over = profile_ratio - config.tau
        return float(over > 0) if config.sigma == 0 else min(max(over / config.sigma, 0.0), 1.0)
    under = max(config.tau - profile_ratio, 0.0)
    return float(under == 0) if config.sigma == 0 else math.exp(-under / config.sigma)


def draw(run_seed: int, trajectory: str, turn: int) -> float:
    """Return the number in [0, 1) that belongs to this turn, uniform and independent over turns."""
    digest = hashlib.blake2b(f"prs/{run_seed}/{turn}/{trajectory}".encode(), digest_size=8).digest()
    return math.ldexp(int.from_bytes(digest, "little") >> (64 - BITS), -BITS)


def decide(
    evaluation: Evaluation | None, run_seed: int, trajectory: str, turn: int, config: LazinessConfig | None = None
) -> LazinessDecision:
    """Decide about one turn; `trajectory` names it uniquely within the run, `turn` counts from 1."""
    config = config or LazinessConfig()
    drawn = draw(run_seed, trajectory, turn)
    judged = config.enabled and evaluation is not None and evaluation.honest_and_correct
    ratio = evaluation.profile_ratio if evaluation is not None and judged else None
    probability = 1.0 if ratio is None else keep_probability(ratio, config)
    return LazinessDecision(
        probability=probability, drawn=drawn, kept=drawn < probability, missing=judged and ratio is None
    )
