"""Tokenizer: a byte-level BPE made on the spot for a small model, with a chat template of our own."""

import json
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from drkernel_q.errors import BadInput

END, PAD = "<|end|>", "<|pad|>"
#: A role is one token that no text merges with, so what comes before an answer encodes alike whatever the answer is.
SPECIAL_TOKENS = [PAD, END, "<|system|>", "<|user|>", "<|assistant|>"]
Pieces = Literal["words", "lines"]
#: What a token may be at most: a line break with the indentation after it, a name, a run of signs; or a whole line.
#: Every digit is a token of its own, so that numbers can be copied. Lines make generated code four times shorter.
PIECES: dict[Pieces, str] = {
    "words": r"\n[ ]*| ?[\p{L}_]+|\p{N}| ?[^\s\p{L}\p{N}_]+|[^\S\n]+",
    "lines": r"\n[ ]*[^\n\p{N}]*|\p{N}|[^\n\p{N}]+",
}


def make_tokenizer(
    texts: Iterable[str], *, vocabulary: int = 2048, context_tokens: int = 8192, pieces: Pieces = "words"
) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer: it encodes any text, decodes to the same text, and knows our chat template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES[pieces]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
        chat_template=(resources.files("policy") / "templates" / "chat.jinja").read_text(encoding="utf-8"),
    )


def read_texts(files: Iterable[Path]) -> Iterator[str]:
    """Read the texts that a tokenizer is trained on: each file whole, or message by message of `messages` JSONL.

    Raises:
        BadInput: a file cannot be read, or holds something else than what its name says.
    """
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
            yield from _contents(text) if file.suffix == ".jsonl" else [text]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{file} cannot be read as text for a tokenizer: {error}.") from error


def _contents(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip():
            yield from (message["content"] for message in json.loads(line)["messages"])
