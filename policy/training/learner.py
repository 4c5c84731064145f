"""Learner: the policy's weights and optimizer. It scores rows, and takes one step for all rows of a training step."""

import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drkernel_q.errors import BadModel
from policy.method.batch import MicroBatch, TurnRow, micro_batches
from policy.method.logprob import Scorer, Scores
from policy.method.loss import PolicyLoss, normaliser, policy_loss
from policy.training.recipe import LoraConfig, OptimizerConfig, TrainConfig
from policy.training.shard import load_shards, save_shards, shard
from policy.training.telemetry import Metrics
from policy.training.weights import merged_state, whole

WEIGHTS, STATE = "model.safetensors", "state.pt"


class RowScore(NamedTuple):
    """What the policy thinks of the sampled tokens of one row."""

    logprobs: NDArray[np.float32]
    """[output tokens], nat, by the temperature that they were sampled with."""
    entropy: float
    """Mean over the output tokens, nat."""


class Learner:
    """The policy that is trained, over as many ranks as there are; every rank calls the same methods together."""

    def __init__(self, model: nn.Module, config: TrainConfig, accelerator: Accelerator) -> None:
        """Take a model in float32, or one in any type whose weights are all frozen but adapters."""
        if config.model.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        scorer = Scorer(model, config.rollout.sampling.temperature, config.batch.chunk_tokens)
        self.model = model
        self.accelerator = accelerator
        self._config = config
        self._sharded = config.sharding == "full" and accelerator.num_processes > 1
        if self._sharded:
            shard(scorer, accelerator.device, accelerator.num_processes)
            self.scorer, self.optimizer = scorer, self._new_optimizer(scorer)
        else:
            self.scorer, self.optimizer = accelerator.prepare(scorer, self._new_optimizer(scorer))

    def _new_optimizer(self, scorer: nn.Module) -> torch.optim.Optimizer:
        chosen = self._config.optimizer
        return torch.optim.AdamW(
            [parameter for parameter in scorer.parameters() if parameter.requires_grad],
            lr=chosen.learning_rate,
            betas=(chosen.beta1, chosen.beta2),
            weight_decay=chosen.weight_decay,
        )

    def lead(self, method: str, *args: Any) -> Any:
        """Call a method on every rank, and return what it gives on this one, rank 0; the others `follow`."""
        if self.accelerator.num_processes > 1:
            broadcast_object_list([(method, args)])
        return getattr(self, method)(*args)

    def follow(self) -> None:
        """Do on this rank whatever rank 0 leads in, until it says that nothing more will come."""
        while True:
            order: list[Any] = [None]
            broadcast_object_list(order)
            method, args = order[0]
            getattr(self, method)(*args)
            if method == "leave":
                return

    def leave(self) -> None:
        """Let the other ranks go, all at once: who is still sending needs whoever receives."""
        self.accelerator.wait_for_everyone()

    @property
    def model_config(self) -> Any:
        """The model's own configuration, which makes a folder of weights a model."""
        return self.model.config

    @property
    def ties(self) -> dict[str, str]:
        """Names of weights that are others too, as an output layer that is the embedding, and the others' names."""
        found: dict[str, str] = getattr(self.model, "all_tied_weights_keys", {})
        return found

    def score(self, rows: Sequence[TurnRow]) -> list[RowScore]:
        """Return log-probabilities and entropy of every row under the weights as they are."""
        self.scorer.eval()
        mine: list[tuple[int, RowScore]] = []
        with torch.no_grad():
            for batch in self._share(rows):
                mine += _by_row(batch, self._scores(batch))
        gathered: list[tuple[int, RowScore]] = gather_object(mine)
        return [found for _, found in sorted(gathered, key=lambda pair: pair[0])]

    def update(self, rows: Sequence[TurnRow], behave: Sequence[NDArray[np.float32]], step: int) -> Metrics:
        """Take the optimizer's step number `step`, from 1, on the loss of all rows together.

        `behave` holds for every row what the ratio of the loss is taken against, [output tokens]. Where no row is kept
        there is nothing to learn and no step: momentum alone would move the weights.
        """
        rate = learning_rate(self._config.optimizer, step)
        if not any(row.kept and row.output_ids for row in rows):
            return {"policy/learning_rate": rate, "policy/skipped": 1.0}
        compared = [
            replace(row, sampler_logprobs=tuple(map(float, old))) for row, old in zip(rows, behave, strict=True)
        ]
        # Without dropout both modes compute the same; only in this one activations are checkpointed.
        self.scorer.train(self._config.model.gradient_checkpointing)
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._backward(self._share(compared), normaliser(rows, self._config.loss))
        norm = self._clip(self._config.optimizer.max_grad_norm)
        finite = math.isfinite(norm) and bool(sums.isfinite().all())
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scorer.eval()  # a sampler of this process computes with it too
        if self._config.sampler.sleeps and torch.cuda.is_available():
            torch.cuda.empty_cache()  # for the sampler that wakes up
        return _described(sums) | {
            "policy/learning_rate": rate,
            "policy/grad_norm": norm,
            "policy/skipped": float(not finite),
        }

    def merged_state(self) -> dict[str, Tensor]:
        """Gather the weights of the plain model, in the type that samplers compute in (`policy.training.weights`)."""
        dtype = getattr(torch, self._config.model.dtype)
        state = merged_state(self.model)
        return {name: tensor.to(dtype) for name, tensor in state.items()} if self.accelerator.is_main_process else {}

    def save(self, folder: Path) -> None:
        """Write what is trained, the optimizer and every rank's generators of random numbers; rank 0 writes.

        Of a sharded model every rank writes its part.
        """
        state: dict[str, Any] = {"generators": gather_object([_generators()])}
        if self._sharded:
            save_shards(folder, self.scorer, self.optimizer)
        elif self.accelerator.is_main_process:
            save_file({name: tensor.detach().contiguous() for name, tensor in self._trained()}, folder / WEIGHTS)
            state["optimizer"] = self.optimizer.state_dict()
        if self.accelerator.is_main_process:
            torch.save(state, folder / STATE)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            BadModel: it was written of another model.
        """
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        if self._sharded:
            load_shards(folder, self.scorer, self.optimizer)
        else:
            self._load_whole(folder, state["optimizer"])
        rank = self.accelerator.process_index
        if rank < len(state["generators"]):
            _restore(state["generators"][rank])

    def _load_whole(self, folder: Path, optimizer: dict[str, Any]) -> None:
        saved = load_file(folder / WEIGHTS)
        mine = dict(self._trained())
        if {name: tensor.shape for name, tensor in saved.items()} != {name: t.shape for name, t in mine.items()}:
            raise BadModel(f"The weights in {folder} are not those of this model.")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(saved[name])
        self.optimizer.load_state_dict(optimizer)

    def _share(self, rows: Sequence[TurnRow]) -> list[MicroBatch]:
        accelerator = self.accelerator
        share = micro_batches(rows, self._config.batch.max_tokens, accelerator.process_index, accelerator.num_processes)
        return [batch.to(accelerator.device) for batch in share]

    def _scores(self, batch: MicroBatch) -> Scores:
        with self.accelerator.autocast() if self._sharded else nullcontext():  # else it is in the prepared module
            found: Scores = self.scorer(batch)
        return found

    def _clip(self, longest: float) -> float:
        """Scale the gradient down to a length; return the length it had."""
        if self._sharded:
            return float(whole(nn.utils.clip_grad_norm_(self.scorer.parameters(), longest)))
        return float(self.accelerator.clip_grad_norm_(self.scorer.parameters(), longest))

    def _backward(self, batches: Sequence[MicroBatch], z: float) -> Tensor:
        """Accumulate the gradient; return sums over all ranks: loss, tokens, clipped, dual clipped, divergence."""
        ranks = self.accelerator.num_processes
        total = torch.zeros(len(PolicyLoss._fields), dtype=torch.float64, device=self.accelerator.device)
        for number, batch in enumerate(batches, start=1):
            last = number == len(batches)
            # Shards are added up as they come: there is no whole gradient that could wait for the last micro-batch.
            with nullcontext() if last or self._sharded else self.accelerator.no_sync(self.scorer):
                scores = self._scores(batch)
                found = policy_loss(scores.logprobs, batch.sampler_logprobs, batch, z, self._config.loss, ranks)
                self.accelerator.backward(found.loss)
            total += torch.stack([part.detach().to(total.dtype) for part in found])
        summed: Tensor = self.accelerator.reduce(total, reduction="sum")
        return summed / torch.tensor([ranks, 1, 1, 1, 1], device=summed.device)

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, tensor) for name, tensor in self.model.named_parameters() if tensor.requires_grad]


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Return the learning rate of a step, from 1: rising over the warm-up, then by the schedule."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / (config.warmup_steps + 1)
    done = min((step - config.warmup_steps) / max(config.schedule_steps - config.warmup_steps, 1), 1.0)
    left = {"constant": 1.0, "linear": 1.0 - done, "cosine": (1.0 + math.cos(math.pi * done)) / 2}
    return config.learning_rate * left[config.schedule]


def with_adapters(model: nn.Module, config: LoraConfig) -> nn.Module:
    """Freeze a model and put LoRA adapters, held in float32, on all its linear layers but the last."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    peft_config = PeftConfig(r=config.rank, lora_alpha=config.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted: nn.Module = get_peft_model(model, peft_config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def _by_row(batch: MicroBatch, scores: Scores) -> list[tuple[int, RowScore]]:
    """Take a micro-batch apart; a blank one gives nothing."""
    found = []
    for place, row in enumerate(batch.rows):
        sampled = batch.sampled[place]
        logprobs = scores.logprobs[place][sampled].float().cpu().numpy()
        entropy = scores.entropy[place][sampled].double()
        found.append((row, RowScore(logprobs, float(entropy.mean()) if entropy.numel() else 0.0)))
    return found


def _described(sums: Tensor) -> Metrics:
    loss, tokens, clipped, dual, divergence = sums.tolist()
    tokens = max(tokens, 1.0)
    return {
        "policy/loss": loss,
        "policy/tokens": tokens,
        "policy/clipped": clipped / tokens,
        "policy/dual_clipped": dual / tokens,
        "policy/divergence": divergence / tokens,
    }


def _generators() -> dict[str, Any]:
    """State of every generator of random numbers, as what `torch.load` takes without running code."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _restore(state: dict[str, Any]) -> None:
    version, values, gauss = state["python"]
    random.setstate((version, tuple(values), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
