"""Order: which problems a step trains on, as a pure function of seed and place: a cursor is all there is to save."""

import random
from collections.abc import Sequence

from drkernel_q.problem import Problem
from drkernel_q.value import content_hash
from policy.rollouts.rollout import GroupOrder


def orders(problems: Sequence[Problem], cursor: int, count: int, *, group_size: int, seed: int) -> list[GroupOrder]:
    """Return the groups of the next `count` problems from `cursor` on.

    The run's sequence goes through all problems, shuffled anew each time round; the trajectories of a problem are
    numbered on from round to round.
    """
    wanted = []
    for place in range(cursor, cursor + count):
        lap, index = divmod(place, len(problems))
        wanted.append(GroupOrder(_shuffled(problems, seed, lap)[index], lap * group_size + 1))
    return wanted


def _shuffled(problems: Sequence[Problem], seed: int, lap: int) -> list[Problem]:
    """The problems of one round; by their content, so that the order in which they were named decides nothing."""
    order = sorted(problems, key=lambda problem: problem.hash)
    random.Random(content_hash("order", str(seed), str(lap))).shuffle(order)  # noqa: S311 - an order, no secret
    return order
