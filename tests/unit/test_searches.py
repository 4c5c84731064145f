"""The benchmark of searches: a failure is slow, a chain that ended has no turn, and pairs are of problems."""

import pytest

from benchmarks.searches import STRATEGIES, Standing, compared, standing
from drkernel_q.kernel import Kernel
from drkernel_q.trajectory import Turn
from policy.search.context import Strategy
from policy.search.scaling import Chain
from tests.values import an_evaluation


def a_chain(*speedups: float | None, stopped: str = "turns") -> Chain:
    """A chain whose turns have these speedups; None is an answer without a kernel."""
    turns = [
        Turn(
            number=number,
            prompt=(),
            completion="",
            kernel=None if speedup is None else Kernel(source=f"speedup = {speedup}"),
            evaluation=None if speedup is None else an_evaluation(speedup=speedup),
        )
        for number, speedup in enumerate(speedups, 1)
    ]
    return Chain(1, turns, [None] * len(turns), stopped)


def test_a_chain_counts_by_its_best_and_by_its_turn() -> None:
    chains = [a_chain(1.5, None, 1.0), a_chain(0.5, 2.0, stopped="context")]
    assert standing(chains, 1) == Standing(fast=0.5, best=1.0, now=0.5, full=0.0, ended=0.0)
    assert standing(chains, 2) == Standing(fast=1.0, best=1.75, now=0.5, full=0.0, ended=0.0)
    assert standing(chains, 3) == Standing(fast=1.0, best=1.75, now=0.0, full=0.5, ended=0.5)


def test_strategies_are_compared_problem_by_problem() -> None:
    found: dict[Strategy, list[list[Chain]]] = {
        "context": [[a_chain(1.0, 2.0)], [a_chain(3.0, 4.0)]],
        "vanilla": [[a_chain(1.0, 1.0)], [a_chain(3.0, 3.0)]],
    }
    ahead = compared(found, 2)["context - vanilla"]["best"]
    assert ahead == pytest.approx((1.0, 1.0, 1.0)), "by 1 on each problem, however far those are apart"
    assert set(found) == set(STRATEGIES)
