"""Claim: what a search says that it found, once a fresh evaluation has said so too.

The best of many turns is partly the luckiest of many timings, so the timing that chose it says too much. What is
claimed is the speedup of another evaluation, with fresh seeds and processes, that had no part in the choice.
"""

from typing import NamedTuple

from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from policy.rollouts.judging import Judge
from policy.search.scaling import Found, Searched

#: Kernels that are tried before a search claims nothing.
TRIES = 3


class Claim(NamedTuple):
    """A kernel and the facts that stand for it."""

    found: Found
    kernel: Kernel
    evaluation: Evaluation
    """The fresh one; that of the search is the turn's."""
    passed_over: int
    """Kernels that ranked higher and did not hold in a fresh evaluation."""


async def claim(searched: Searched, fresh: Judge) -> Claim | None:
    """Evaluate the best kernel again, and the next ones where it does not hold; None when nothing does.

    Raises:
        BadProblem, Unavailable: as `Judge.evaluate`.
    """
    tried: set[str] = set()
    for found in searched.ranking():
        kernel = found.turn.kernel
        if kernel is None or kernel.hash in tried:
            continue
        if len(tried) == TRIES:
            return None
        evaluation = await fresh.evaluate(searched.problem, kernel)
        if evaluation is not None and evaluation.honest_and_correct:
            return Claim(found, kernel, evaluation, passed_over=len(tried))
        tried.add(kernel.hash)
    return None
