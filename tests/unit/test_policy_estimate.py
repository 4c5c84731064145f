"""Sizes of a run, from shapes alone."""

import json
from pathlib import Path

import pytest

from drkernel_q.errors import BadModel
from policy.training.estimate import memory, shape_of


@pytest.mark.parametrize(("name", "billions"), [("Qwen/Qwen3-8B-Base", 8.19), ("Qwen/Qwen3-14B-Base", 14.77)])
def test_the_paper_s_models_have_as_many_weights_as_their_publishers_say(name: str, billions: float) -> None:
    shape = shape_of(name)
    assert shape is not None
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.005)


def test_a_folder_tells_its_shape(tmp_path: Path) -> None:
    config = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = shape_of(tmp_path)
    assert shape is not None
    assert shape.kv_heads == 2
    layer = 4 * 64 * 64 + 2 * 32 + 3 * 64 * 192 + 2 * 64
    assert shape.parameters == 512 * 64 + 2 * layer + 64
    assert shape.adapter_parameters(4) == 2 * 4 * (4 * (64 + 64) + 3 * (64 + 192))


def test_a_model_that_is_not_here_has_no_shape(tmp_path: Path) -> None:
    assert shape_of("somebody/model") is None
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    with pytest.raises(BadModel, match="num_attention_heads"):
        shape_of(tmp_path)


def test_full_training_takes_16_bytes_a_weight_and_adapters_far_less() -> None:
    shape = shape_of("Qwen/Qwen3-8B-Base")
    assert shape is not None
    full = memory(shape, half=True, checkpointing=True, tokens=16_384, logit_tokens=1024)
    assert full.training == 16 * shape.parameters
    lora = memory(shape, lora_rank=64, half=True, checkpointing=True, tokens=16_384, logit_tokens=1024)
    assert lora.weights == 2 * shape.parameters
    assert lora.training < full.training / 20
    assert lora.total < 60e9
    sharded = memory(shape, half=True, checkpointing=True, tokens=16_384, logit_tokens=1024, shards=8)
    assert sharded.training == full.training // 8
    assert sharded.activations == full.activations
    whole = memory(shape, half=True, tokens=16_384, logit_tokens=1024)
    assert whole.activations > 10 * full.activations
