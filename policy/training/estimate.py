"""Estimate: how large a run will be, from its configuration and the shape of its model alone."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from drkernel_q.errors import BadModel
from policy.model.shape import Shape

#: Bytes of a weight, its gradient and AdamW's two moments in fp32.
TRAINED_BYTES = 16
#: Bytes of activations that a transformer layer keeps for one token, in units of its hidden size and type (Korthikanti
#: et al. 2022, arXiv:2205.05198, table 2, without the attention matrix, which is never whole in memory).
LAYER_UNITS = 17
#: Copies of the logits of a chunk of tokens in fp32: the logits, their softmax, and their gradient.
LOGIT_COPIES = 3
_FLOAT_BYTES = 4

#: Shapes of models that presets name, for a machine that does not have them: config.json of their publishers.
_QWEN3: dict[str, Any] = {"vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8}
KNOWN: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-8B-Base": _QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "Qwen/Qwen3-14B-Base": _QWEN3
    | {"hidden_size": 5120, "intermediate_size": 17_408, "num_hidden_layers": 40, "num_attention_heads": 40},
}


class Memory(NamedTuple):
    """Bytes on the trainer's device, roughly."""

    weights: int
    """Weights that are not trained, and the copy that is computed with."""
    training: int
    """Trained weights, gradients and optimizer."""
    activations: int
    """What the backward pass needs of one micro-batch."""
    logits: int
    """Logits of one chunk of tokens."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def shape_of(model: str | Path) -> Shape | None:
    """Read the shape of a model from its folder, or from what is known of its name; None where nothing is known.

    Raises:
        BadModel: the folder's config.json cannot be read, or is not of such a model.
    """
    file = Path(model).expanduser() / "config.json"
    if not file.is_file():
        return _shape(KNOWN[str(model)]) if str(model) in KNOWN else None
    try:
        return _shape(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(f"{file} does not describe a model that can be trained here: {error}.") from error


def memory(
    shape: Shape,
    *,
    lora_rank: int = 0,
    half: bool = False,
    checkpointing: bool = False,
    tokens: int,
    logit_tokens: int,
    shards: int = 1,
) -> Memory:
    """Estimate a device's memory for micro-batches of `tokens` tokens, of which `logit_tokens` have logits at once.

    `half`: computed in bfloat16. Trained weights are held in fp32: at a learning rate of 1e-6 an update is smaller than
    the last bit of a bfloat16. `shards`: over how many devices FSDP spreads weights and optimizer.
    """
    size = 2 if half else _FLOAT_BYTES
    trained = shape.adapter_parameters(lora_rank) if lora_rank else shape.parameters
    held = shape.parameters * size if lora_rank or half else 0
    unit = tokens * shape.hidden * size
    live = 1 if checkpointing else shape.layers
    kept = shape.layers if checkpointing else 0
    wide = LAYER_UNITS + 2 * shape.intermediate // shape.hidden
    return Memory(
        weights=held // shards,
        training=trained * TRAINED_BYTES // shards,
        activations=unit * (live * wide + kept),
        logits=logit_tokens * shape.vocabulary * _FLOAT_BYTES * LOGIT_COPIES,
    )


def _shape(config: dict[str, Any]) -> Shape:
    heads = int(config["num_attention_heads"])
    return Shape(
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads", heads)),
        head_dim=int(config.get("head_dim", config["hidden_size"] // heads)),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
    )
