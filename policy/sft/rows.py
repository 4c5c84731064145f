"""Rows: what a run trains on and what it validates on."""

from collections.abc import Sequence

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from drkernel_q.errors import BadInput
from policy.sft.config import DataConfig
from policy.sft.conversation import IGNORED, Row, encode_conversations, read_conversations, split_conversations


class Rows:
    """The rows of a run: what is trained on, and what is validated on."""

    def __init__(self, data: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read, split and encode.

        Raises:
            BadInput: a file is wrong, or no row fits into `max_tokens`.
        """
        train = list(read_conversations(data.files))
        if data.validation:
            validation = list(read_conversations(data.validation))
        else:
            train, validation = split_conversations(train, data.validation_share)
        self.train = encode_conversations(tokenizer, train, data.max_tokens, data.loss_on)
        self.validation = encode_conversations(
            tokenizer, validation[: data.max_validation_rows], data.max_tokens, data.loss_on
        )
        if not self.train.rows:
            raise BadInput(f"None of the {len(train)} conversations fits into data.max_tokens = {data.max_tokens}.")

    def facts(self) -> dict[str, int]:
        """Count rows, tokens and learned tokens."""
        return {
            "rows": len(self.train.rows),
            "tokens": sum(len(row.input_ids) for row in self.train.rows),
            "learned_tokens": sum(label != IGNORED for row in self.train.rows for label in row.labels),
            "longest_row": max(len(row.input_ids) for row in self.train.rows),
            "left_out_answers": self.train.left_out,
            "validation_rows": len(self.validation.rows),
        }


def dataset(rows: Sequence[Row]) -> Dataset:
    """Give rows as the trainer takes them."""
    return Dataset.from_dict({name: [getattr(row, name) for row in rows] for name in Row._fields})
