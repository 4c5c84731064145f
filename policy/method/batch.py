"""Batches: the turns of a step, each a row of its own, cut into micro-batches by tokens and padded on the right.

Of a row with prompt p_1..p_m and output y_1..y_n the model sees p and y in one sequence; the logits at place k predict
the token at place k + 1, so that the first output token is predicted by the last of the prompt. Everything that is
about predictions is therefore one shorter than the ids, and shifted: place k of `sampled` belongs to the token k + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn to learn from, by the token ids that the engine saw and gave."""

    prompt_ids: tuple[int, ...]
    """What the model was shown; at least one token."""
    output_ids: tuple[int, ...]
    """What it sampled, with the end-of-turn token if that was sampled."""
    sampler_logprobs: tuple[float, ...]
    """Log-probability of each output token under the sampler."""
    advantage: float
    """The same for all its tokens."""
    kept: bool = True
    """Whether neither MRS nor PRS rejected it; a rejected row counts in the normaliser and has no gradient."""

    def __post_init__(self) -> None:
        """Refuse what does not fit together, here and not as a shape in the middle of a step."""
        if not self.prompt_ids or len(self.sampler_logprobs) != len(self.output_ids):
            raise ValueError(
                f"a row of {len(self.prompt_ids)} prompt tokens, {len(self.output_ids)} output tokens and "
                f"{len(self.sampler_logprobs)} log-probabilities"
            )

    def __len__(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that go through the model together: B rows, padded to L tokens."""

    rows: tuple[int, ...]
    """Place of each row in the step; empty for a blank one."""
    ids: Tensor
    """[B, L] int64, padded with 0."""
    attention: Tensor
    """[B, L] int64: 1 for tokens, 0 for padding."""
    sampled: Tensor
    """[B, L - 1] bool: whether the token that is predicted here was sampled by the policy."""
    sampler_logprobs: Tensor
    """[B, L - 1] float32; 0 where nothing was sampled."""
    advantages: Tensor
    """[B] float32."""
    kept: Tensor
    """[B] bool."""

    @property
    def learned(self) -> Tensor:
        """[B, L - 1] bool: sampled, and not rejected."""
        return self.sampled & self.kept[:, None]

    def to(self, device: torch.device | str) -> Self:
        """Return it on another device."""
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self) if field.name != "rows"}
        return type(self)(rows=self.rows, **moved)


def plan(lengths: Sequence[int], max_tokens: int, ranks: int = 1) -> list[list[list[int]]]:
    """Share rows of these lengths out: for each rank its micro-batches, each a list of places.

    Rows of like length go together; rows times the longest of them is at most `max_tokens`, except that a row that is
    longer by itself goes alone. Every rank has the same number of micro-batches, since their collectives must meet;
    where there is nothing left they are blank ([]), never a copy of another row.
    """
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    batches: list[list[int]] = []
    for place in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens:
            batches[-1].append(place)
        else:
            batches.append([place])
    batches += [[] for _ in range(-len(batches) % ranks)]
    return [batches[rank::ranks] for rank in range(ranks)]


def micro_batches(rows: Sequence[TurnRow], max_tokens: int, rank: int = 0, ranks: int = 1) -> list[MicroBatch]:
    """Return the micro-batches of a step that this rank is to do, all ranks having the same rows in the same order."""
    return [collate(rows, places) for places in plan([len(row) for row in rows], max_tokens, ranks)[rank]]


def collate(rows: Sequence[TurnRow], places: Sequence[int] | None = None) -> MicroBatch:
    """Pad the rows at these places (all, if not given) on the right; none give a blank row that teaches nothing."""
    places = range(len(rows)) if places is None else places
    chosen = [rows[place] for place in places]
    height, width = max(len(chosen), 1), max((len(row) for row in chosen), default=0)
    width = max(width, 2)  # at least one prediction, so that a blank row has a graph
    ids = torch.zeros(height, width, dtype=torch.int64)
    attention = torch.zeros(height, width, dtype=torch.int64)
    sampled = torch.zeros(height, width - 1, dtype=torch.bool)
    logprobs = torch.zeros(height, width - 1, dtype=torch.float32)
    for i, row in enumerate(chosen):
        ids[i, : len(row)] = torch.tensor(row.prompt_ids + row.output_ids, dtype=torch.int64)
        attention[i, : len(row)] = 1
        outputs = slice(len(row.prompt_ids) - 1, len(row) - 1)
        sampled[i, outputs] = True
        logprobs[i, outputs] = torch.tensor(row.sampler_logprobs, dtype=torch.float32)
    if not chosen:
        attention[:] = 1
    return MicroBatch(
        rows=tuple(places),
        ids=ids,
        attention=attention,
        sampled=sampled,
        sampler_logprobs=logprobs,
        advantages=torch.tensor([row.advantage for row in chosen] or [0.0], dtype=torch.float32),
        kept=torch.tensor([row.kept for row in chosen] or [False], dtype=torch.bool),
    )
