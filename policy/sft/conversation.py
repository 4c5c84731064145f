"""Conversation: messages from files become rows of token ids, of which only the answers are learned."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError
from transformers import PreTrainedTokenizerBase

from drkernel_q.errors import BadInput, BadModel
from drkernel_q.trajectory import Message
from drkernel_q.value import content_hash

Conversation = tuple[Message, ...]
#: A label that no loss is taken on (the convention of transformers).
IGNORED = -100
_MESSAGES = TypeAdapter(Conversation)


class Row(NamedTuple):
    """One row of training: labels are the ids where the model's answers are, and IGNORED elsewhere."""

    input_ids: list[int]
    labels: list[int]


class Encoded(NamedTuple):
    """Rows, and what did not fit into them."""

    rows: list[Row]
    left_out: int
    """Answers that were left out because their row would have been too long."""


def read_conversations(paths: Iterable[Path]) -> Iterator[Conversation]:
    """Read the column `messages` of JSONL and Parquet files, folders of them, and folders that `datasets` saved.

    Raises:
        BadInput: a file cannot be read, or a row holds no messages; the sentence names it.
    """
    for path in paths:
        for number, row in enumerate(_rows(path), start=1):
            try:
                messages = _MESSAGES.validate_python(row["messages"], extra="ignore")
            except (KeyError, TypeError):
                raise BadInput(f"{path}, row {number}, has no `messages`.") from None
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise BadInput(f"{path}, row {number}, message {where}: {first['msg']}.") from None
            if "assistant" not in [message.role for message in messages[1:]] or messages[0].role == "assistant":
                raise BadInput(f"{path}, row {number}, is no question with an answer to learn.")
            yield messages


def split_conversations(
    conversations: Sequence[Conversation], share: float
) -> tuple[list[Conversation], list[Conversation]]:
    """Set a share of the problems aside, with all that is said about them; by content, so that it never changes.

    At least one problem is set aside if a share is asked for and there are two; one problem at least is trained on.
    """
    keys = [_problem(conversation) for conversation in conversations]
    problems = sorted(set(keys))
    count = min(max(round(share * len(problems)), 1 if share else 0), len(problems) - 1)
    aside = set(problems[:count])
    train = [each for each, key in zip(conversations, keys, strict=True) if key not in aside]
    return train, [each for each, key in zip(conversations, keys, strict=True) if key in aside]


def encode_conversations(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Iterable[Conversation],
    max_tokens: int,
    loss_on: Literal["all", "last"] = "all",
) -> Encoded:
    """Encode conversations as a sampler would meet them.

    A prompt is encoded as a sampler encodes it, an answer on its own, up to and including its end of turn. An answer
    joins the row of the one before if its prompt begins with exactly that row; where the template rewrites
    history (some drop old thoughts), it begins a row of its own. Nothing is cut: what does not fit is left out.

    Raises:
        BadModel: the chat template does not open an answer as it renders one, or does not end it.
    """
    rows, left_out = [], 0
    for conversation in conversations:
        answers = [index for index, message in enumerate(conversation) if message.role == "assistant"]
        learned = set(answers if loss_on == "all" else answers[-1:])
        made = [_Draft(tokenizer)]
        for index in answers:
            prompt, answer = _rendered(tokenizer, conversation, index)
            if not prompt.startswith(made[-1].text):
                made.append(_Draft(tokenizer))
            if not made[-1].take(prompt, answer, learn=index in learned, max_tokens=max_tokens):
                left_out += sum(later in learned for later in answers if later >= index)
                break
        rows += [Row(draft.ids, draft.labels) for draft in made if any(label != IGNORED for label in draft.labels)]
    return Encoded(rows, left_out)


class _Draft:
    """A row while it grows, and the text that it stands for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.labels: list[int] = []
        self._tokenizer = tokenizer

    def take(self, prompt: str, answer: str, *, learn: bool, max_tokens: int) -> bool:
        """Append what `prompt` adds and the answer; False if the row would be longer than `max_tokens`."""
        before, after = (
            self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt[len(self.text) :], answer)
        )
        if len(self.ids) + len(before) + len(after) > max_tokens:
            return False
        self.text = prompt + answer
        self.ids += [*before, *after]
        self.labels += [IGNORED] * len(before) + (list(after) if learn else [IGNORED] * len(after))
        return True


def _rendered(tokenizer: PreTrainedTokenizerBase, conversation: Conversation, index: int) -> tuple[str, str]:
    """Render the prompt of an answer, and the answer with its end of turn."""
    messages = [message.model_dump() for message in conversation[: index + 1]]
    prompt = str(tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True))
    whole = str(tokenizer.apply_chat_template(messages, tokenize=False))
    if not whole.startswith(prompt):
        raise BadModel("The chat template opens an answer otherwise than it renders one, so it cannot be trained on.")
    answer, end, _ = whole[len(prompt) :].rpartition(str(tokenizer.eos_token))
    if not end:
        raise BadModel(f"The chat template does not end an answer by the end-of-turn token {tokenizer.eos_token}.")
    return prompt, answer + end


def _problem(conversation: Conversation) -> str:
    asked = takewhile(lambda message: message.role != "assistant", conversation)
    return content_hash("problem", *(message.content for message in asked))


def _rows(path: Path) -> Iterator[Any]:
    try:
        if path.is_dir():
            yield from _folder(path)
        elif path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            with path.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines if line.strip())
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors too
        raise BadInput(f"{path} cannot be read as conversations: {error}.") from error


def _folder(path: Path) -> Iterator[Any]:
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        from datasets import Dataset, load_from_disk

        loaded = load_from_disk(str(path))
        for part in [loaded] if isinstance(loaded, Dataset) else loaded.values():
            yield from part
        return
    files = sorted(file for file in path.rglob("*") if file.suffix in {".jsonl", ".parquet"})
    if not files:
        raise BadInput(f"The folder {path} holds no JSONL, no Parquet, and no saved dataset.")
    for file in files:
        yield from _rows(file)


def _parquet(path: Path) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["messages"]):
            yield from batch.to_pylist()
