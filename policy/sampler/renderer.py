"""Renderer: from a chat to token ids by the model's own template, and from output ids to text."""

from collections.abc import Collection, Sequence
from typing import Any

from drkernel_q.errors import BadModel
from drkernel_q.trajectory import Message
from policy.sampler.protocol import Prompt

#: What an answer is made of to find out how the template ends one.
_PROBE = "drkq"


class Renderer:
    """Renders chats with the template of a tokenizer."""

    def __init__(self, tokenizer: Any, *, stop_ids: Collection[int] = ()) -> None:
        """Use a tokenizer of transformers; `stop_ids` end a turn beside those that the template ends one with.

        Raises:
            BadModel: it has no template that renders a chat.
        """
        self._tokenizer = tokenizer
        self.stop_ids = frozenset(stop_ids) | self._ends()
        if not self.stop_ids:
            raise BadModel("The model's tokenizer has no token that ends a turn.")

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Render a chat up to where the answer begins."""
        ids = self._ids(self._render(messages, answer=True))
        return Prompt(messages=tuple(messages), ids=tuple(ids), tokens=len(ids))

    def decode(self, output_ids: Sequence[int]) -> str:
        """Make text of a completion, without the token that ended it; for people and for extraction only."""
        text: str = self._tokenizer.decode(list(output_ids), skip_special_tokens=True)
        return text

    def _render(self, messages: Sequence[Message], *, answer: bool) -> str:
        chat = [message.model_dump() for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer)
        except Exception as error:  # the template is the model's own, and may raise anything
            raise BadModel(f"The model's chat template cannot be filled in: {error}.") from error
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _ends(self) -> set[int]:
        """Token ids that end a turn: the tokenizer's own, and the special token that the template puts after one."""
        chat = [Message(role="user", content="?"), Message(role="assistant", content=_PROBE)]
        after = self._render(chat, answer=False).rpartition(_PROBE)[2]
        special = set(self._tokenizer.all_special_ids)
        ends = [token for token in self._ids(after) if token in special][:1]
        eos = self._tokenizer.eos_token_id
        return {*ends, *([] if eos is None else [eos])}
