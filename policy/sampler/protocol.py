"""Sampler: what a rollout asks of whatever writes the completions, and the values that pass between them."""

from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, model_validator

from drkernel_q.trajectory import Message
from drkernel_q.value import Value


class Sampling(Value):
    """How a completion is drawn; nothing else shapes the distribution (no top-p, no top-k, no penalties)."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Logits are divided by it before the softmax; 0 takes the likeliest token."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 2048
    """Longest completion, tokens, the end-of-turn token included."""
    seed: int | None = None
    """Seed of this completion alone, so that it does not depend on what else is in the batch."""


class Prompt(Value):
    """A chat as the engine sees it."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...] = ()
    """Token ids, with the template's opening of the answer; empty where the engine keeps them to itself."""
    tokens: int
    """How many tokens it takes of the context (counted, or estimated where `ids` is empty)."""


class Sample(Value):
    """One completion as the engine gave it."""

    text: str
    """For extraction and display; never encoded again."""
    output_ids: tuple[int, ...] = ()
    """Token ids, the end-of-turn token included if it was drawn; empty where the engine keeps them to itself."""
    logprobs: tuple[float, ...] = ()
    """Natural log-probability of each output token under the distribution it was drawn from (after temperature); at
    temperature 0, under that of temperature 1."""
    finish_reason: Literal["stop", "length"]
    """`stop`: the model ended its turn; `length`: it was cut at `max_new_tokens` or at the end of the context."""
    policy_version: int | None = None
    """Training step of the weights that drew it; None for models that are not trained here."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len(self.logprobs) != len(self.output_ids):
            raise ValueError(f"{len(self.output_ids)} tokens with {len(self.logprobs)} log-probabilities")
        return self


class Sampler(Protocol):
    """Draws completions. Used as `async with sampler:`; safe for many concurrent `sample` calls."""

    name: str
    """What people call the model."""
    context_tokens: int
    """Longest prompt and completion together, tokens."""

    async def __aenter__(self) -> Self:
        """Load or connect.

        Raises:
            BadModel: the model cannot be used.
            NoSampler: the server does not answer.
        """
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of memory, connections and processes."""
        ...

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Render a chat by the model's template, up to where the answer begins."""
        ...

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        """Draw one completion.

        Raises:
            PromptTooLong: prompt and `max_new_tokens` do not fit into the context.
            NoSampler: the engine failed and did not come back.
        """
        ...
