"""Small things to train with: a model, rows, a configuration, and facts without a worker."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from drkernel_q.evaluation import Evaluation
from drkernel_q.kernel import Kernel
from drkernel_q.problem import Problem
from policy.method.batch import TurnRow
from policy.training.recipe import TrainConfig
from tests.need import ROOT
from tests.values import an_evaluation

# Models so small are slower on several threads, and much slower where others want the cores too.
torch.set_num_threads(1)

#: As many tokens as the scripted sampler has.
VOCABULARY = 258


def a_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """A model of two layers that is sure of something, as trained ones are."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        **shape,
    )
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        model.lm_head.weight *= 20
    return model


def some_rows(count: int = 7, seed: int = 0, **changes: Any) -> list[TurnRow]:
    """Rows of different lengths, advantages of both signs, and one that was rejected."""
    generator = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(0, VOCABULARY, (length,), generator=generator).tolist())

    rows = []
    for number in range(count):
        prompt, output = ids(3, 20), ids(1, 30)
        advantage = float(torch.randn(1, generator=generator))
        kept = number != count - 1
        rows.append(TurnRow(prompt, output, (-1.0,) * len(output), advantage, kept=kept, **changes))
    return rows


def a_config(**changes: Any) -> TrainConfig:
    """A configuration that is quick; sections are replaced key by key."""
    small: dict[str, Any] = {
        "steps": 4,
        "problems": {"names": ("softmax", "gelu", "matmul"), "per_step": 2},
        "rollout": {
            "group_size": 3,
            "turns": 2,
            "templates": str(ROOT / "tests" / "templates"),
            "sampling": {"max_new_tokens": 100},
        },
        "optimizer": {"learning_rate": 1e-3},
        "batch": {"max_tokens": 4096, "chunk_tokens": 64},
        "checkpoint": {"every_steps": 2},
        "tracking": {"trackers": ()},
        "judge_device": "cpu",
    }
    return TrainConfig.model_validate(_merged(small, changes))


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for name, value in second.items():
        before = merged.get(name)
        merged[name] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


class Facts:
    """A judge without a worker: what a kernel earns is decided by its text, and what fails is decided by a share."""

    def __init__(self, failing: float = 0.0) -> None:
        self.failing = failing
        self.asked: list[tuple[str, str]] = []

    async def evaluate(self, problem: Problem, kernel: Kernel) -> Evaluation | None:
        self.asked.append((problem.hash, kernel.hash))
        digest = hashlib.blake2b(f"{problem.hash}{kernel.hash}".encode(), digest_size=3).digest()
        luck, speed, ratio = (byte / 256 for byte in digest)
        if luck < self.failing:
            return None
        if luck > 0.8:
            return an_evaluation("wrong_value", device_kind="cpu")
        return an_evaluation(speedup=3 * speed, profile_ratio=ratio, device_kind="cpu")


def answer(prompt: Any, sampling: Any) -> str:
    """A kernel that differs from seed to seed; every ninth answer has none."""
    seed = sampling.seed or 0
    return "I do not know." if seed % 9 == 0 else f"```python\nclass ModelNew:\n    number = {seed % 1000}\n```"


def weights(model: torch.nn.Module) -> dict[str, Sequence[float]]:
    return {name: parameter.detach().flatten().tolist() for name, parameter in model.named_parameters()}
