"""The scripted sampler: completions from a list or a function, for tests and rehearsals; it needs no model."""

import asyncio
import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from drkernel_q.errors import BadModel, PromptTooLong
from drkernel_q.trajectory import Message
from policy.sampler.protocol import Prompt, Sample, Sampling

#: Answers a prompt; what it makes of the seed is its own affair.
Script = Callable[[Prompt, Sampling], str]

#: Tokens are bytes, and these two: the end of a turn, and the beginning of a message.
END, BEGIN = 256, 257
#: Log-probability of every token: as of a policy that takes any byte, or the end, for equally likely.
LOGPROB = -math.log(END + 1)


class ScriptedSampler:
    """Answers from a script. Of a list, the n-th answer is that to the n-th turn, and the last one all that follow."""

    def __init__(
        self,
        script: Script | Sequence[str],
        *,
        name: str = "scripted",
        latency_s: float = 0.0,
        context_tokens: int = 1 << 20,
    ) -> None:
        """Take a script; every answer takes `latency_s`."""
        self.name = name
        self.context_tokens = context_tokens
        self.policy_version: int | None = None
        self._script = script if callable(script) else _in_order(list(script))
        self._latency_s = latency_s

    async def __aenter__(self) -> Self:
        """There is nothing to load."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """There is nothing to let go of."""

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Write a chat as bytes."""
        ids = [token for message in messages for token in (BEGIN, *_bytes(f"{message.role}\n{message.content}"), END)]
        ids += [BEGIN, *b"assistant\n"]
        return Prompt(messages=tuple(messages), ids=tuple(ids), tokens=len(ids))

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Sample:
        """Answer; an answer that is too long is cut."""
        if prompt.tokens + sampling.max_new_tokens > self.context_tokens:
            raise PromptTooLong
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        whole = (*_bytes(self._script(prompt, sampling)), END)
        ids = whole[: sampling.max_new_tokens]
        return Sample(
            text=bytes(token for token in ids if token != END).decode("utf-8", "replace"),
            output_ids=ids,
            logprobs=(LOGPROB,) * len(ids),
            finish_reason="stop" if len(ids) == len(whole) else "length",
            policy_version=self.policy_version,
        )

    async def load_weights(self, source: object, version: int) -> None:
        """Take over the version; there are no weights."""
        self.policy_version = version


def read_script(name: str) -> Script | Sequence[str]:
    """Find a script: `copy`, which answers with the reference itself, or a file.

    A `.json` file is a list of answers, a `.py` file defines `answer(prompt, sampling)`, and any other file is the
    answer to everything.

    Raises:
        BadModel: there is none.
    """
    if name == "copy":
        return copy_reference
    path = Path(name)
    try:
        if path.suffix == ".py":
            return _function(path)
        text = path.read_text(encoding="utf-8")
        answers = json.loads(text) if path.suffix == ".json" else [text]
    except (OSError, ValueError) as error:
        raise BadModel(f"There is no script at {path}: {error}.") from error
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise BadModel(f"{path} is no script: it must hold a list of answers.")
    return answers


def copy_reference(prompt: Prompt, sampling: Sampling) -> str:
    """Answer with the last block of the first user message, its `Model` renamed: correct, and nobody's work."""
    asked = next(message.content for message in prompt.messages if message.role == "user")
    source = asked.rpartition("```python\n")[2].partition("\n```")[0]
    renamed = source.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    return f"```python\n{renamed}\n```"


def _in_order(answers: Sequence[str]) -> Script:
    def answer(prompt: Prompt, sampling: Sampling) -> str:
        turn = sum(message.role == "assistant" for message in prompt.messages)
        return answers[min(turn, len(answers) - 1)]

    return answer


def _function(path: Path) -> Script:
    spec = importlib.util.spec_from_file_location(f"drkq_script_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadModel(f"There is no script at {path}.")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    script: Script | None = getattr(module, "answer", None)
    if not callable(script):
        raise BadModel(f"{path} is no script: it defines no function `answer`.")
    return script


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
