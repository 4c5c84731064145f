"""Returns: what a turn earns together with the turns that follow from it."""

import math
from collections.abc import Sequence


def turn_returns(rewards: Sequence[float | None], gamma: float = 1.0) -> list[float | None]:
    """Return G_t = sum over u >= t of gamma^(u - t) * r_u for each turn of a trajectory, by G_t = r_t + gamma * G_t+1.

    Source: the paper's section on multi-turn credit, with gamma = 1. Only turns that exist are given and counted; a
    trajectory that ended early is a shorter list. A reward of None (the infrastructure failed; NaN and infinities count
    as that) is unknown and not 0, and so is every return that it is part of: that turn's and, unless gamma is 0, those
    of the turns before it. Later turns keep theirs.
    """
    returns: list[float | None] = []
    following: float | None = 0.0
    for reward in reversed(rewards):
        if reward is None or not math.isfinite(reward):
            following = None
        elif gamma == 0:
            following = reward
        elif following is not None:
            following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
