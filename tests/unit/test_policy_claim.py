"""What a search claims is what a fresh evaluation says."""

import pytest

from drkernel_q.errors import BadSettings
from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.store import Store
from drkernel_q.trajectory import Turn
from policy.rollouts.resumption import announce
from policy.search.claim import TRIES, claim
from policy.search.scaling import Chain, Searched
from tests.values import SOFTMAX, an_evaluation


class Fresh:
    """Finds what it is told to, kernel by kernel; what is missing cannot be judged."""

    def __init__(self, **known: Evaluation) -> None:
        self.known = known
        self.asked: list[str] = []

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        self.asked.append(kernel.source)
        return self.known.get(kernel.source)


def searched(**rewards: float) -> Searched:
    turns = [
        Turn(number=number, prompt=(), completion="", kernel=Kernel(source=source), evaluation=an_evaluation())
        for number, source in enumerate(rewards, start=1)
    ]
    return Searched(SOFTMAX, (Chain(1, turns, list(rewards.values())),))


async def test_the_fresh_evaluation_stands() -> None:
    fresh = Fresh(b=an_evaluation(speedup=1.4))
    found = await claim(searched(a=1.0, b=3.0, c=2.0), fresh)
    assert found is not None
    assert (found.kernel.source, found.evaluation.speedup, found.passed_over) == ("b", 1.4, 0)
    assert fresh.asked == ["b"]


async def test_what_does_not_hold_is_passed_over() -> None:
    """Wrong the second time, and not judged at all."""
    fresh = Fresh(a=an_evaluation(speedup=0.9), b=an_evaluation("wrong_value"))
    found = await claim(searched(a=1.0, b=3.0, c=2.0), fresh)
    assert found is not None
    assert (found.kernel.source, found.passed_over) == ("a", 2)
    assert fresh.asked == ["b", "c", "a"]


async def test_nothing_is_claimed_where_nothing_holds() -> None:
    fresh = Fresh(e=an_evaluation())
    assert await claim(searched(a=5.0, b=4.0, c=3.0, d=2.0, e=1.0), fresh) is None
    assert len(fresh.asked) == TRIES
    assert await claim(searched(a=0.0), fresh) is None


def test_a_run_goes_on_if_it_is_the_same(store: Store) -> None:
    settings = {"model": "m", "scaling": {"window": 4, "limits": {"tokens": 5}}, "turns": 8}
    free = ("scaling.limits", "turns")
    assert not announce(store, "r", kind="stts", settings=settings, free=free)
    assert announce(store, "r", kind="stts", settings=settings, free=free)
    more = {"model": "m", "scaling": {"window": 4, "limits": {"tokens": 9}}, "turns": 16}
    assert announce(store, "r", kind="stts", settings=more, free=free)
    with pytest.raises(BadSettings, match=r"begun with scaling\.window = 4, not 2"):
        announce(store, "r", kind="stts", settings=settings | {"scaling": {"window": 2}}, free=free)
    with pytest.raises(BadSettings, match="one of `drkq stts`"):
        announce(store, "r", kind="bench", settings=settings)
