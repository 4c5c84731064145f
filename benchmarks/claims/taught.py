"""Fine-tuning of a small policy in a loop of its own, for a machine that has no trl; elsewhere `drkq sft` does it."""

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from drkernel_q.cli.output import say
from policy.model.model import load_model, save_model
from policy.sft.conversation import IGNORED, Row, encode_conversations, read_conversations

RATE, WARMUP, BETAS, DECAY, LONGEST = 3e-3, 0.03, (0.9, 0.98), 0.01, 1.0
MAX_TOKENS = 2048
#: Batches whose rows are sorted by length, so that little of a batch is padding.
_SORTED = 8
#: Steps between two lines about the loss.
EVERY = 50


def teach(source: Path, talk: Path, target: Path, *, epochs: float, batch: int, seed: int, device: str) -> None:
    """Learn all answers of conversations, as the preset `tiny` of `drkq sft` would, and save the model.

    The loss of a batch is the mean over its answers' tokens; `metrics.jsonl` beside the model holds it.
    """
    model, tokenizer = load_model(source, "float32", device)
    model.train()
    torch.set_float32_matmul_precision("high")
    rows = encode_conversations(tokenizer, read_conversations([talk]), MAX_TOKENS).rows
    steps = max(round(epochs * len(rows) / batch), 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY)
    began, lines = time.monotonic(), []
    for step, chosen in zip(range(1, steps + 1), _batches(rows, batch, seed), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = RATE * _share(step, steps)
        loss = _loss(model, chosen, device)
        loss.backward()  # type: ignore[no-untyped-call]  # torch is typed in parts
        torch.nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % EVERY == 0 or step == steps:
            lines.append({"step": step, "loss": float(loss.detach()), "seconds": round(time.monotonic() - began, 1)})
            say(f"step {step}/{steps}  loss {lines[-1]['loss']:.4f}  {lines[-1]['seconds']:.0f} s")
    save_model(model.eval(), tokenizer, target)
    (target.parent / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _batches(rows: Sequence[Row], batch: int, seed: int) -> Iterator[list[Row]]:
    """Go through the rows for ever, shuffled anew each time round; those of a batch are about as long as each other."""
    draw = random.Random(seed)
    line: list[Row] = []
    while True:
        while len(line) < batch * _SORTED:
            line += draw.sample(rows, len(rows))
        alike = sorted(line[: batch * _SORTED], key=lambda row: len(row.input_ids))
        line = line[batch * _SORTED :]
        batches = [alike[start : start + batch] for start in range(0, len(alike), batch)]
        draw.shuffle(batches)
        yield from batches


def _loss(model: PreTrainedModel, rows: Sequence[Row], device: str) -> torch.Tensor:
    ids = pad_sequence([torch.tensor(row.input_ids) for row in rows], batch_first=True).to(device)
    labels = pad_sequence([torch.tensor(row.labels) for row in rows], batch_first=True, padding_value=IGNORED)
    mask = pad_sequence([torch.ones(len(row.input_ids), dtype=torch.long) for row in rows], batch_first=True)
    hidden = model.base_model(input_ids=ids, attention_mask=mask.to(device), use_cache=False).last_hidden_state
    wanted = labels[:, 1:] != IGNORED  # logits of the rest would be half of all work
    logits = model.get_output_embeddings()(hidden[:, :-1][wanted.to(device)])
    return cross_entropy(logits, labels[:, 1:][wanted].to(device))


def _share(step: int, steps: int) -> float:
    """Of the learning rate: up over the warm-up, then down as a cosine."""
    warm = max(WARMUP * steps, 1.0)
    return step / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1.0))) / 2
