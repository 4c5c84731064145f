"""Preview: what a run would do, without a step of it."""

import math
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from policy.model.model import load_tokenizer, model_folder, quiet
from policy.sft.config import SftConfig
from policy.sft.conversation import IGNORED
from policy.sft.rows import Rows

#: float32 weights, gradients, and the two moments of AdamW.
_BYTES_TRAINED = 16
_BYTES_FROZEN = {"float32": 4, "bfloat16": 2}


def preview(config: SftConfig) -> tuple[dict[str, Any], str]:
    """Count rows, steps and bytes, and decode what is learned of the first row.

    Raises:
        BadInput: the data cannot be used.
        BadModel: the model cannot be used.
    """
    tokenizer = load_tokenizer(config.model)
    rows = Rows(config.data, tokenizer)
    parameters = _parameters(config.model)
    facts: dict[str, Any] = {"parameters": parameters, **rows.facts(), "steps": _steps(config, len(rows.train.rows))}
    if config.lora.rank:
        facts["bytes_without_adapters_and_activations"] = parameters * _BYTES_FROZEN[config.precision]
    else:
        facts["bytes_without_activations"] = parameters * _BYTES_TRAINED
    learned = [label for label in rows.train.rows[0].labels if label != IGNORED]
    return facts, str(tokenizer.decode(learned))


def _parameters(spec: str) -> int:
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_folder(spec)))
    return sum(parameter.numel() for parameter in model.parameters())


def _steps(config: SftConfig, rows: int) -> int | None:
    """Count optimizer steps; None with packing, where it depends on how rows come together."""
    if config.max_steps is not None:
        return config.max_steps
    return None if config.data.packing else math.ceil(math.ceil(rows / config.batch_size) * config.epochs)
