"""Engine: a batch of completions that grows and shrinks token by token, on a transformers model.

Requests join the batch while it runs and leave it when they end, so a short completion never waits for a long one.
What a request draws depends on its own seed alone: each token takes one uniform number of the request's own generator
through the distribution's cumulative sum in double precision.
"""

import inspect
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from policy.sampler.protocol import Sampling


@dataclass(eq=False)
class Request:
    """One completion that is wanted, and what there is of it."""

    prompt_ids: Sequence[int]
    sampling: Sampling
    done: Callable[["Request"], None]
    """Called once, by the thread that steps the engine, when the completion is whole or could not be made."""
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    error: Exception | None = None
    cancelled: bool = False
    """Set by whoever does not want it any more; it is dropped at the next token."""

    @property
    def tokens(self) -> int:
        """Tokens that it may take of the cache."""
        return len(self.prompt_ids) + self.sampling.max_new_tokens

    def begin(self) -> None:
        """Start, or start over, from its seed."""
        self.output_ids, self.logprobs = [], []
        self._random = random.Random(self.sampling.seed)  # noqa: S311 - no secret

    def uniform(self) -> float:
        """Draw the number that decides the next token."""
        return self._random.random()


class Engine:
    """Steps a batch. Everything but `submit` belongs to one thread."""

    def __init__(
        self, model: PreTrainedModel, stop_ids: Collection[int], *, batch_tokens: int = 65_536, batch_rows: int = 64
    ) -> None:
        """Use a model, in evaluation mode; at most so many tokens, padding included, and rows are in its cache."""
        self._model: Any = model
        self._stop_ids = frozenset(stop_ids)
        self._batch_tokens = batch_tokens
        self._batch_rows = batch_rows
        self._last_only = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )
        self._waiting: deque[Request] = deque()
        self._rows: list[Request] = []
        self._cache = DynamicCache()
        self._mask = torch.zeros(0, 0, dtype=torch.long)
        """Rows by columns of the cache: 1 where a token is, 0 for padding on the left."""

    def submit(self, request: Request) -> None:
        """Let a request wait for its place in the batch."""
        request.begin()
        self._waiting.append(request)

    @property
    def running(self) -> int:
        """Rows of the batch."""
        return len(self._rows)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._rows and not self._waiting

    @torch.inference_mode()
    def step(self, *, admit: bool = True) -> None:
        """Draw one token of every row; before that, requests join, unless they are not to be admitted."""
        try:
            self._drop_cancelled()
            drawn = [self._decode()] if self._rows else []
            joining = self._joining() if admit else []
            if joining:
                drawn.append(self._prefill(joining))
            self._draw(torch.cat(drawn)) if drawn else None
        except torch.OutOfMemoryError as error:
            self._out_of_memory(error)

    def fail_all(self, error: Exception) -> None:
        """Give every request this error."""
        for request in [*self._rows, *self._waiting]:
            request.error = error
            request.done(request)
        self._waiting.clear()
        self._reset()

    def _joining(self) -> list[Request]:
        """Take requests from the line, in order, while there is room."""
        joining: list[Request] = []
        while self._waiting:
            request = self._waiting[0]
            if request.cancelled:
                self._waiting.popleft()
                continue
            batch = [*self._rows, *joining, request]
            if len(batch) > 1 and (len(batch) > self._batch_rows or _padded(batch) > self._batch_tokens):
                break
            joining.append(self._waiting.popleft())
        return joining

    def _prefill(self, requests: list[Request]) -> Tensor:
        """Compute prompts, padded on the left, and join their cache to the batch's; return logits, rows by tokens."""
        longest = max(len(request.prompt_ids) for request in requests)
        device = self._model.device
        gaps = [longest - len(request.prompt_ids) for request in requests]
        ids = torch.tensor(
            [[0] * gap + list(r.prompt_ids) for gap, r in zip(gaps, requests, strict=True)], device=device
        )
        mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps], device=device)
        cache, alone = DynamicCache(), not self._rows
        # They are the batch's from here on: whatever goes wrong is told to them too.
        self._rows += requests
        logits = self._forward(ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
        if alone:
            self._cache, self._mask = cache, mask
        else:
            self._join(cache, mask)
        return logits

    def _decode(self) -> Tensor:
        """Compute the last token of every row; return logits, rows by tokens."""
        last = torch.tensor([[row.output_ids[-1]] for row in self._rows], device=self._model.device)
        self._mask = pad(self._mask, (0, 1), value=1)
        return self._forward(last, self._mask, self._mask.sum(1, keepdim=True) - 1, self._cache)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        )
        logits: Tensor = output.logits[:, -1, :].float()
        return logits

    def _draw(self, logits: Tensor) -> None:
        """Draw a token of every row from its logits, and let those leave that have ended."""
        temperatures = torch.tensor([row.sampling.temperature or 1.0 for row in self._rows], device=logits.device)
        logprobs = (logits / temperatures[:, None]).log_softmax(-1)
        tokens = self._choose(logprobs)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        for row, token, logprob in zip(self._rows, tokens.tolist(), chosen, strict=True):
            row.output_ids.append(token)
            row.logprobs.append(logprob)
            if token in self._stop_ids:
                row.finish_reason = "stop"
            elif len(row.output_ids) >= row.sampling.max_new_tokens:
                row.finish_reason = "length"
        ended = [row for row in self._rows if row.finish_reason]
        self._keep([index for index, row in enumerate(self._rows) if not row.finish_reason])
        for row in ended:
            row.done(row)

    def _choose(self, logprobs: Tensor) -> Tensor:
        greedy = torch.tensor([row.sampling.temperature == 0 for row in self._rows], device=logprobs.device)
        likeliest = logprobs.argmax(-1)
        if bool(greedy.all()):
            return likeliest
        cumulative = logprobs.double().exp().cumsum(-1)
        uniform = [[0.0 if row.sampling.temperature == 0 else row.uniform()] for row in self._rows]
        target = torch.tensor(uniform, dtype=torch.double, device=logprobs.device) * cumulative[:, -1:]
        # The first token whose cumulative share is above the number; a token of no probability is never it.
        drawn = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logprobs.shape[-1] - 1)
        return torch.where(greedy, likeliest, drawn)

    def _join(self, cache: DynamicCache, mask: Tensor) -> None:
        """Put rows below those that are there; the shorter side is padded on the left."""
        length = max(mask.shape[1], self._mask.shape[1])
        for layer, other in zip(_layers(self._cache), _layers(cache), strict=True):
            layer.keys = torch.cat([_widened(layer.keys, length), _widened(other.keys, length)])
            layer.values = torch.cat([_widened(layer.values, length), _widened(other.values, length)])
        self._mask = torch.cat([pad(each, (length - each.shape[1], 0)) for each in (self._mask, mask)])

    def _keep(self, indices: list[int]) -> None:
        """Let all other rows go, and the padding that only they needed."""
        if len(indices) == len(self._rows):
            return
        self._rows = [self._rows[index] for index in indices]
        if not self._rows:
            self._reset()
            return
        chosen = torch.tensor(indices, device=self._mask.device)
        self._mask = self._mask[chosen]
        spare = int(self._mask.shape[1] - self._mask.sum(1).max())
        self._mask = self._mask[:, spare:]
        for layer in _layers(self._cache):
            layer.keys = layer.keys[chosen][:, :, spare:]
            layer.values = layer.values[chosen][:, :, spare:]

    def _drop_cancelled(self) -> None:
        self._keep([index for index, row in enumerate(self._rows) if not row.cancelled])

    def _out_of_memory(self, error: Exception) -> None:
        """Start over with smaller batches; what a request draws stays the same."""
        rows = self._rows
        self._reset()
        if len(rows) <= 1:
            self._waiting.extendleft(reversed(rows))
            self.fail_all(error)
            return
        self._batch_tokens = max(1, _padded(rows) // 2)
        for row in reversed(rows):
            row.begin()
            self._waiting.appendleft(row)

    def _reset(self) -> None:
        self._rows, self._cache = [], DynamicCache()


def _padded(rows: Sequence[Request]) -> int:
    """Tokens that the cache of a batch may come to: every row is as wide as the longest."""
    return len(rows) * max(row.tokens for row in rows)


def _layers(cache: DynamicCache) -> list[Any]:
    """The layers of a cache that holds keys and values of every token, which is the only kind that can be padded."""
    return list(cache.layers)


def _widened(tensor: Tensor, length: int) -> Tensor:
    """Pad keys or values, rows by heads by columns by width, on the left of their columns."""
    return pad(tensor, (0, 0, length - tensor.shape[2], 0))
