"""Lesson: what a training step made of one turn. Kept with the turn, so that every gradient can be told from facts."""

from typing import Literal

from pydantic import Field

from drkernel_q.value import Value


class Lesson(Value):
    """The numbers that one turn went into one training step with; None where there is no such number."""

    problem_hash: str
    trajectory: int = Field(ge=1)
    """Number of the trajectory among those of its problem in the run."""
    turn: int = Field(ge=1)
    """Number of the turn in the trajectory."""
    step: int = Field(ge=1)
    """Training step that learned from it, from 1."""
    reward: float | None = None
    """None: the evaluation failed for reasons that are not the kernel's; never 0 for that."""
    turn_return: float | None = None
    """Discounted sum of the rewards from this turn on; None where one of them is missing."""
    advantage: float | None = None
    """Return minus baseline."""
    mismatch: Literal["kept", "band", "veto", "nonfinite"] | None = None
    """MRS: kept, or why it was rejected (the mean left the band, a token's ratio was vetoed, a log-probability was no
    number); None where nothing was decided."""
    mean_log_ratio: float | None = None
    """MRS: mean over tokens of log pi_train - log pi_sampler, in the scope that decides; None if it is no number."""
    keep_probability: float | None = None
    """PRS: probability of being kept."""
    draw: float | None = None
    """PRS: the number in [0, 1) that was drawn once; kept if it is below the probability."""
    lazy: bool = False
    """PRS: whether the draw rejected the turn."""

    @property
    def is_learned(self) -> bool:
        """Whether the turn's tokens are in the gradient."""
        return self.advantage is not None and self.mismatch in (None, "kept") and not self.lazy
