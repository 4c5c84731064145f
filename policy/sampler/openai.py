"""The OpenAI-compatible sampler: teachers and closed models behind a chat interface; text without tokens."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import openai

from drkernel_q.errors import BadModel, PromptTooLong
from drkernel_q.trajectory import Message
from policy.sampler import remote
from policy.sampler.protocol import Prompt, Sample, Sampling
from policy.sampler.usage import Usage

#: Bytes of text that make a token, at least: a prompt's tokens are estimated from above.
_BYTES_PER_TOKEN = 3
_MESSAGE_TOKENS = 8
_PER_MILLION = 1e6


class OpenAISampler:
    """Samples from any server with `/chat/completions`. There are no token ids, so RL learns nothing from it."""

    def __init__(
        self,
        model: str = "",
        *,
        url: str | None = None,
        key: str | None = None,
        context_tokens: int | None = None,
        prices: tuple[float, float] = (0.0, 0.0),
        patience: remote.Patience = remote.Patience(),  # noqa: B008 - frozen
    ) -> None:
        """Name a model of OpenAI, or of the server at a URL, whose only model it is if it is not named.

        `prices` are those of a million tokens read and written; the key is `OPENAI_API_KEY` unless it is given.
        """
        self.name = model
        self.context_tokens = context_tokens or 128_000
        self.usage = Usage()
        self._url = url
        self._key = key
        self._prices = prices
        self._patience = patience
        self._where = url or "OpenAI"

    async def __aenter__(self) -> Self:
        """Connect, and find out whether the model is there.

        Raises:
            BadModel: the server has no such model, or several and none is named.
            BadSettings: it wants a key.
            NoSampler: it does not answer.
        """
        self._client = remote.connect(self._url, self._key)
        if self._url is not None:
            await self._find_model()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect."""
        await self._client.close()

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Estimate the tokens of a chat, rather too many than too few."""
        sizes = (len(message.content.encode("utf-8", "replace")) for message in messages)
        tokens = sum(-(-size // _BYTES_PER_TOKEN) + _MESSAGE_TOKENS for size in sizes)
        return Prompt(messages=tuple(messages), tokens=tokens)

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        """Ask for one completion; a server that does not keep seeds gives another one each time.

        Raises:
            PromptTooLong: prompt and `max_new_tokens` do not fit into the context.
            NoSampler: the server failed and did not come back.
            BadModel, BadSettings: it refuses.
        """
        if prompt.tokens + sampling.max_new_tokens > self.context_tokens:
            raise PromptTooLong
        return await remote.insist(lambda: self._ask(prompt, sampling), where=self._where, patience=self._patience)

    async def _ask(self, prompt: Prompt, sampling: Sampling) -> Sample:
        messages: Any = [message.model_dump() for message in prompt.messages]
        # OpenAI's newer models want the one name, other servers may know only the other.
        limit: Any = {"max_completion_tokens" if self._url is None else "max_tokens": sampling.max_new_tokens}
        answer = await self._client.chat.completions.create(
            model=self.name,
            messages=messages,
            temperature=sampling.temperature,
            seed=openai.omit if sampling.seed is None else sampling.seed,
            **limit,
        )
        if not getattr(answer, "choices", None):
            raise remote.Malformed(f"{self._where} answered without a choice.")
        choice = answer.choices[0]
        self._count(answer.usage)
        cut = choice.finish_reason == "length"
        return Sample(text=choice.message.content or "", finish_reason="length" if cut else "stop")

    def _count(self, usage: Any) -> None:
        read, written = (getattr(usage, name, 0) or 0 for name in ("prompt_tokens", "completion_tokens"))
        cost = (read * self._prices[0] + written * self._prices[1]) / _PER_MILLION
        self.usage.add(read, written, cost)

    async def _find_model(self) -> None:
        async def ask() -> list[str]:
            return [model.id for model in (await self._client.models.list()).data]

        known = await remote.insist(ask, where=self._where, patience=self._patience)
        if not self.name and len(known) == 1:
            self.name = known[0]
        if self.name not in known:
            raise BadModel(f"{self._where} has no model `{self.name}`; it has {', '.join(known) or 'none'}.")
