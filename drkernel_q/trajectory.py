"""Message, Turn, Trajectory, Group: the record of a model writing kernels over several turns."""

from typing import Literal

from pydantic import Field

from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.value import Value, content_hash


class Message(Value):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str

    def hash(self, parent: str = "") -> str:
        """Content hash over this message and the hash of the one before, so that shared prefixes are stored once."""
        return content_hash("message", parent, self.role, self.content)


class Turn(Value):
    """One model call and what its kernel showed."""

    number: int = Field(ge=1)
    """Position in the trajectory, from 1."""
    prompt: tuple[Message, ...]
    """What the model was shown."""
    completion: str
    """What it answered, as text."""
    kernel: Kernel | None = None
    """The kernel found in the completion; None when there was none."""
    evaluation: Evaluation | None = None
    """Facts about the kernel; None when the evaluation failed for infrastructure reasons, or there was no kernel."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids as the engine saw them."""
    output_ids: tuple[int, ...] = ()
    """Token ids as the engine gave them; never re-encoded from text."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each output token under the sampler, natural log."""
    finish_reason: str | None = None
    policy_version: int | None = None
    """Training step of the weights that wrote this turn."""


class Trajectory(Value):
    """The turns of one rollout for one problem."""

    problem_hash: str
    turns: tuple[Turn, ...]


class Group(Value):
    """The trajectories of one problem that share a baseline (K rollouts)."""

    problem_hash: str
    trajectories: tuple[Trajectory, ...]
