"""Log-probabilities and entropy of the sampled tokens under the policy that is trained, in fp32, a chunk at a time.

With z the logits divided by the temperature that the tokens were sampled with,

    log pi(y) = z_y - logsumexp(z)        H = logsumexp(z) - sum of softmax(z) * z

The logits of a long batch over 150,000 words do not fit: the output layer is applied to the places of sampled tokens
alone, some hundreds at a time, and again in the backward pass.

The model should be in evaluation mode (no dropout): the sampler has none, and MRS would see the difference.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from policy.method.batch import MicroBatch

#: Tokens whose logits are in memory at a time: 1,024 times 152,000 words in fp32 are 0.6 GB.
CHUNK_TOKENS = 1024
#: Settings of models that change logits after the output layer, which is not done here.
RESHAPED = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class Scores(NamedTuple):
    """What the policy thinks of the tokens of a micro-batch."""

    logprobs: Tensor
    """[B, L - 1], fp32 (fp64 of a model in fp64), with gradient; 0 where nothing was sampled."""
    entropy: Tensor
    """[B, L - 1], nat, without gradient; 0 where nothing was sampled."""


class Scorer(nn.Module):
    """A causal language model whose forward call is `score`, so that DDP and FSDP can wrap the whole of it."""

    def __init__(self, model: nn.Module, temperature: float = 1.0, chunk_tokens: int = CHUNK_TOKENS) -> None:
        """Take a transformers model (or one with adapters around it)."""
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens

    def forward(self, batch: MicroBatch) -> Scores:
        """Return `score` of the batch."""
        return score(self.model, batch, self.temperature, self.chunk_tokens)


def score(model: nn.Module, batch: MicroBatch, temperature: float = 1.0, chunk_tokens: int = CHUNK_TOKENS) -> Scores:
    """Return log-probabilities and entropies of the sampled tokens of a micro-batch.

    Without any sampled token all are 0, and still hang on every weight, so that the backward pass of a blank
    micro-batch takes part in whatever the ranks do together.

    Raises:
        ValueError: the model changes its logits after the output layer, or the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"no log-probabilities at a temperature of {temperature}")
    decoder, head = _parts(model)
    hidden = decoder(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False).last_hidden_state[:, :-1]
    chosen = batch.sampled
    blank = not bool(chosen.any())
    if blank:
        chosen = torch.zeros_like(chosen)
        chosen[0, 0] = True
    logprobs, entropy = token_logprobs(hidden[chosen], batch.ids[:, 1:][chosen], head, temperature, chunk_tokens)
    if blank:
        logprobs, entropy = logprobs * 0, entropy * 0
    return Scores(_spread(logprobs, chosen), _spread(entropy, chosen))


def token_logprobs(
    hidden: Tensor, tokens: Tensor, head: nn.Module, temperature: float = 1.0, chunk_tokens: int = CHUNK_TOKENS
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of each token [N], from the last hidden states [N, D] and the output layer.

    Memory is that of `chunk_tokens` times the size of the vocabulary, in the backward pass too.
    """
    chunks = list(zip(torch.split(hidden, chunk_tokens), torch.split(tokens, chunk_tokens), strict=True))
    if torch.is_grad_enabled() and len(chunks) > 1:
        parts = [checkpoint(_chunk, *chunk, head, temperature, use_reentrant=False) for chunk in chunks]
    else:
        parts = [_chunk(*chunk, head, temperature) for chunk in chunks]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(states: Tensor, targets: Tensor, head: nn.Module, temperature: float) -> tuple[Tensor, Tensor]:
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    total = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - total
    with torch.no_grad():
        entropy = total - (logits.softmax(dim=-1) * logits).sum(dim=-1)
    return logprobs, entropy


def _spread(values: Tensor, where: Tensor) -> Tensor:
    return torch.zeros(where.shape, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def _parts(model: Any) -> tuple[Any, nn.Module]:
    """Everything below the output layer, and that layer."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    changed = [name for name in RESHAPED if getattr(getattr(inner, "config", None), name, None) not in {None, 1.0}]
    if changed:
        raise ValueError(f"the model changes its logits by {', '.join(changed)}, which is not supported")
    return inner.get_decoder(), inner.get_output_embeddings()
