"""A language model of two layers in fp64, small enough for finite differences; rows to learn from; their gradient."""

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from policy.method.batch import TurnRow, micro_batches
from policy.method.logprob import score
from policy.method.loss import LossConfig, normaliser, policy_loss

WORDS, WIDTH, PLACES = 11, 8, 64


class Layer(nn.Module):
    """Causal attention with one head, and a gated sum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        weights = query @ key.transpose(1, 2) / WIDTH**0.5
        weights = weights.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        return hidden + torch.tanh(self.out(weights @ value))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool) -> SimpleNamespace:
        assert not use_cache
        places = torch.arange(input_ids.shape[1])
        hidden = self.words(input_ids) + self.places(places)
        visible = (places[:, None] >= places) & attention_mask[:, None, :].bool()
        for layer in self.layers:
            hidden = layer(hidden, visible)
        return SimpleNamespace(last_hidden_state=hidden)


class TinyModel(nn.Module):
    """With random weights from a seed."""

    def __init__(self, seed: int = 0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            super().__init__()
            self.decoder, self.head = Decoder(), nn.Linear(WIDTH, WORDS)
        self.double()

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Logits of every place, made at once."""
        return self.head(self.decoder(ids, attention, use_cache=False).last_hidden_state)

    def flat_gradient(self) -> Tensor:
        return torch.cat([weight.grad.flatten() for weight in self.parameters() if weight.grad is not None])


def some_rows(count: int = 8, seed: int = 0, *, spread: float = 0.6) -> list[TurnRow]:
    """Rows of several lengths, advantages of both signs, a fifth rejected, and a sampler that is somewhat off."""
    chance = random.Random(seed)
    rows = []
    for i in range(count):
        prompt = tuple(chance.randrange(WORDS) for _ in range(chance.randint(1, 5)))
        output = tuple(chance.randrange(WORDS) for _ in range(chance.randint(1, 9)))
        rows.append(
            TurnRow(
                prompt,
                output,
                tuple(-math.log(WORDS) + chance.uniform(-spread, spread) for _ in output),
                chance.uniform(-2, 2),
                i % 5 != 4,
            )
        )
    return rows


def gradient(
    rows: Sequence[TurnRow], config: LossConfig | None = None, *, max_tokens: int = 10_000, z: float | None = None
) -> Tensor:
    """Gradient of a step, over all weights, accumulated over its micro-batches."""
    config = config or LossConfig()
    model = TinyModel()
    z = normaliser(rows, config) if z is None else z
    for batch in micro_batches(rows, max_tokens):
        policy_loss(score(model, batch).logprobs, batch.sampler_logprobs, batch, z, config).loss.backward()
    return model.flat_gradient()
