"""Advantages: returns less a baseline of the other rollouts for the same problem, turn by turn.

For a group of N trajectories and a turn t, S is the set of those that have a return there and n is its size. Then

    trloo             A_i,t = G_i,t - mean of G_j,t over j in S without i  =  n / (n - 1) * (G_i,t - mean of G over S)
    grpo              A_i,t = G_i,t - mean of G over S
    turn_independent  as grpo, of rewards in place of returns: no credit for what follows
    rloo              A_i,t = G_i,1 - mean of G_j,1 over j without i, the same for all turns of a trajectory

TRLOO (the article, 5.3) is unbiased, since its baseline does not hold what the turn itself did: GRPO's does, and its
expected gradient is the true one times (n - 1) / n. Nothing is divided by a standard deviation unless asked for, since
that weights problems by how even their rewards are.

A trajectory alone in its turn (n = 1) has nobody to be compared with: TRLOO takes its return as it is (`raw`), which is
unbiased; `zero` loses the gradient of every turn that few trajectories reach.

What was rejected (MRS, PRS) stays in the baseline (`all`): a baseline may hold whatever does not depend on the turn
itself, it varies less so, and the gradient is then that of E[kept * (r - E[r])]. With `kept` it leaves that too.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from drkernel_q.value import Value
from policy.method.returns import turn_returns

#: Added to the standard deviation that advantages are divided by, as GRPO's authors do, so that equal rewards give 0.
EPSILON = 1e-6
#: Fewer values than this have no standard deviation.
MIN_FOR_DEVIATION = 2


class AdvantageConfig(Value):
    """Which advantage, and of which returns."""

    kind: Literal["trloo", "grpo", "rloo", "turn_independent"] = "trloo"
    """The formula; see `policy.method.advantage`."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount of the reward of each later turn; 0 gives a turn no credit for what follows."""
    singleton: Literal["raw", "zero"] = "raw"
    """Leave-one-out advantage of a turn that one trajectory alone has: its return, or nothing (biased)."""
    baseline: Literal["all", "kept"] = "all"
    """Whose returns make the baseline: of all with a reward, or only of those that were not rejected."""
    divide_by_std: bool = False
    """Whether a turn's advantages are divided by the standard deviation of its returns in the group (biased)."""


def group_advantages(
    rewards: Sequence[Sequence[float | None]],
    config: AdvantageConfig | None = None,
    kept: Sequence[Sequence[bool]] | None = None,
) -> list[list[float | None]]:
    """Return the advantages of one group from its rewards; all of shape trajectories x turns, ragged."""
    config = config or AdvantageConfig()
    gamma = 0.0 if config.kind == "turn_independent" else config.gamma
    return advantages([turn_returns(row, gamma) for row in rewards], config, kept)


def advantages(
    returns: Sequence[Sequence[float | None]],
    config: AdvantageConfig | None = None,
    kept: Sequence[Sequence[bool]] | None = None,
) -> list[list[float | None]]:
    """Return the advantage of each turn of one group, None where it has no return.

    `returns` and `kept` (not rejected; all if not given) are trajectories x turns, ragged. Sums are exact, so that the
    order of the trajectories changes no bit. For `turn_independent` the caller gives rewards for returns, as
    `group_advantages` does.
    """
    config = config or AdvantageConfig()
    members = [
        [config.baseline == "all" or kept is None or kept[i][t] for t in range(len(row))]
        for i, row in enumerate(returns)
    ]
    turns = range(max(map(len, returns), default=0))
    if config.kind == "rloo":
        whole = _of_turn(returns, members, 0, config)
        return [[whole.get(i)] * len(row) for i, row in enumerate(returns)]
    columns = [_of_turn(returns, members, turn, config) for turn in turns]
    return [[columns[t].get(i) for t in range(len(row))] for i, row in enumerate(returns)]


def _of_turn(
    returns: Sequence[Sequence[float | None]], members: Sequence[Sequence[bool]], turn: int, config: AdvantageConfig
) -> dict[int, float]:
    """The advantage of every trajectory that has a return in this turn, by its place in the group."""
    present = {i: value for i, row in enumerate(returns) if turn < len(row) and (value := row[turn]) is not None}
    compared = {i: value for i, value in present.items() if members[i][turn]}
    scale = _deviation(compared.values()) if config.divide_by_std else 1.0
    return {i: (value - _baseline(i, value, compared, config)) / scale for i, value in present.items()}


def _baseline(i: int, value: float, compared: Mapping[int, float], config: AdvantageConfig) -> float:
    leave_one_out = config.kind in {"trloo", "rloo"}
    others = [each for j, each in compared.items() if not leave_one_out or j != i]
    if others:
        return math.fsum(others) / len(others)
    return 0.0 if leave_one_out and config.singleton == "raw" else value


def _deviation(values: Collection[float]) -> float:
    """Sample standard deviation; 1 where there are too few for one."""
    if len(values) < MIN_FOR_DEVIATION:
        return 1.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) + EPSILON
