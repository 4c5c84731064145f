"""Exercise: a generated problem and its solutions, each of a quality that the judge should find."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from drkernel_q.curriculum.part import Recipe, names
from drkernel_q.evaluation import Evaluation, Integrity, Outcome
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from drkernel_q.value import Value, content_hash

Split = Literal["train", "heldout"]
#: One chain in so many is held out.
_HELD_OUT = 10


class Quality(StrEnum):
    """How good a solution is, worst first."""

    BROKEN = "broken"
    """Does not compile, or raises."""
    EDGE = "edge"
    """Wrong at an edge: a mask, a grid or a padding is off."""
    WRONG = "wrong"
    """Computes something else."""
    FALLBACK = "fallback"
    """Torch alone."""
    DECOY = "decoy"
    """Torch alone, beside a kernel that does nothing for the outputs."""
    LAZY = "lazy"
    """One operator in Triton, the others in torch."""
    PARTIAL = "partial"
    """A part in Triton, the rest in torch."""
    NAIVE = "naive"
    """All in one kernel, with small blocks or too few warps."""
    FUSED = "fused"
    """All in one kernel."""

    @property
    def good(self) -> bool:
        """Whether it is correct and honest."""
        return self in _GOOD

    def agrees(self, evaluation: Evaluation) -> bool:
        """Whether an evaluation shows what a solution of this quality should show."""
        if evaluation.outcome not in _OUTCOMES.get(self, {Outcome.CORRECT}):
            return False
        if self in (Quality.FALLBACK, Quality.DECOY):
            return evaluation.integrity in (Integrity.REJECTED, Integrity.SUSPICIOUS)
        return evaluation.integrity is Integrity.CLEAN if self.good else True


_GOOD = frozenset({Quality.LAZY, Quality.PARTIAL, Quality.NAIVE, Quality.FUSED})
_OUTCOMES: Mapping[Quality, frozenset[Outcome]] = {
    Quality.BROKEN: frozenset({Outcome.COMPILE_ERROR, Outcome.RUNTIME_ERROR}),
    Quality.EDGE: frozenset({Outcome.WRONG_VALUE}),
    Quality.WRONG: frozenset({Outcome.WRONG_VALUE}),
}


class Solution(Value):
    """One way to solve a problem, or not."""

    quality: Quality
    kernel: Kernel


class Exercise(Value):
    """A problem with solutions of every quality."""

    level: int
    chain: tuple[str, ...]
    """Operators without their constants."""
    problem: Problem
    solutions: tuple[Solution, ...]

    @property
    def split(self) -> Split:
        """`heldout` for chains that no training problem of any seed has."""
        return split(self.level, self.chain)


def split(level: int, chain: tuple[str, ...]) -> Split:
    """Decide by the chain alone, so that no chain is ever in both parts."""
    digest = content_hash("chain", str(level), *chain).partition(":")[2]
    return "heldout" if int(digest, 16) % _HELD_OUT == 0 else "train"


def title(level: int, recipe: Recipe) -> str:
    """One sentence about a problem."""
    kind = {1: "Elementwise", 2: "Rows", 3: "Product"}[level]
    return f"{kind}: {', then '.join(name.replace('_', ' ') for name in names(recipe))}."
