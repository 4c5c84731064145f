"""A model is loaded from what people name, made anew from a seed, and refused in a sentence."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from drkernel_q.errors import BadModel
from policy.cli.model import command
from policy.model.model import load_model, make_model, model_folder
from policy.model.shape import SIZES, Size
from policy.model.tokenizer import END, make_tokenizer
from tests.need import ROOT

TEXTS = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))] + ["import torch\n" * 50]
CHAT = [
    {"role": "user", "content": "Write it. <b>\n"},
    {"role": "assistant", "content": "\n\n  x = 1024\n"},
    {"role": "user", "content": "Faster!"},
    {"role": "assistant", "content": "y"},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made") / "model", "tiny", TEXTS, vocabulary=400)


@pytest.fixture(scope="module", params=["words", "lines"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return make_tokenizer(TEXTS, vocabulary=400, pieces=request.param)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_makes_the_same_files_and_another_seed_other_weights(made: Path, tmp_path: Path) -> None:
    again = files(make_model(tmp_path / "again", "tiny", TEXTS, vocabulary=400))
    other = files(make_model(tmp_path / "other", "tiny", TEXTS, vocabulary=400, seed=1))
    assert again == files(made)
    assert {name for name in again if again[name] != other[name]} == {"model.safetensors"}


@pytest.mark.parametrize(("size", "parameters"), [("0.9m", 0.9e6), ("1.6m", 1.6e6), ("5m", 5e6), ("20m", 20e6)])
def test_sizes_are_what_they_are_called(size: Size, parameters: float) -> None:
    hidden, layers, heads, kv_heads, width = SIZES[size]
    attention = width * hidden * (2 * heads + 2 * kv_heads)
    count = 2048 * hidden + layers * (attention + 9 * hidden * hidden)
    assert count == pytest.approx(parameters, rel=0.06)


def test_what_was_made_is_loaded_and_ends_its_turns(made: Path) -> None:
    model, tokenizer = load_model(made)
    assert model.dtype == torch.float32
    assert not model.training
    assert tokenizer.eos_token == END
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id
    assert load_model(str(made), dtype="bfloat16")[0].dtype == torch.bfloat16


@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@given(text=st.text())
def test_a_longer_chat_begins_with_the_tokens_of_the_shorter(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    chat = [*CHAT[:1], {"role": "assistant", "content": text}, *CHAT[2:]]

    def ids(upto: int, opened: bool = False) -> list[int]:
        encoded = tokenizer.apply_chat_template(chat[:upto], add_generation_prompt=opened, return_dict=True)
        return list(encoded["input_ids"])

    whole = ids(4)
    for turn in (1, 3):
        prompt = ids(turn, opened=True)
        assert whole[: len(prompt)] == prompt
        answer = tokenizer(str(chat[turn]["content"]))["input_ids"]
        assert whole[len(prompt) : len(prompt) + len(answer) + 1] == [*answer, tokenizer.eos_token_id]


def test_the_template_marks_the_answers_with_their_end_and_nothing_else(tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = tokenizer.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    kept = [token for token, mark in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(kept) == f"\n\n  x = 1024\n{END}y{END}"


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def drop_a_layer(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))


def widen(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 100}))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "abacus"}'), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer of"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer of"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (truncate, "cannot be loaded"),
        (drop_a_layer, "incomplete"),
        (widen, "cannot be loaded"),
    ],
)
def test_a_broken_folder_is_refused_in_a_sentence(made: Path, tmp_path: Path, harm: object, said: str) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(made, folder)
    assert callable(harm)
    harm(folder)
    with pytest.raises(BadModel, match=said) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["./nowhere", "nowhere.gguf", "a/b/c", "not a name!"])
def test_a_name_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(BadModel, match="There is no model at"):
        model_folder(name)


def test_a_hub_name_without_a_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadModel, match="does not answer"):
        model_folder("nobody/nothing")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"GGML....")
    with pytest.raises(BadModel, match="no GGUF file"):
        model_folder(tmp_path / "weights.gguf")
    (tmp_path / "weights.gguf").write_bytes(b"GGUF....")
    with pytest.raises(BadModel, match="cannot be read"):
        model_folder(tmp_path / "weights.gguf")


def test_nothing_is_overwritten(made: Path) -> None:
    before = files(made)
    with pytest.raises(BadModel, match="not empty"):
        make_model(made, "tiny", TEXTS)
    assert files(made) == before


def test_commands_make_and_show(tmp_path: Path) -> None:
    source = tmp_path / "text.py"
    source.write_text("\n".join(TEXTS))
    folder = tmp_path / "model"
    done = CliRunner().invoke(command, ["new", str(folder), "--size", "tiny", "--texts", str(source)])
    assert done.exit_code == 0, done.output
    shown = json.loads(CliRunner().invoke(command, ["show", str(folder), "--json"]).stdout)
    assert shown["architecture"] == "Qwen3ForCausalLM"
    assert shown["parameters"] == sum(p.numel() for p in load_model(folder)[0].parameters())
    assert shown["context_tokens"] == 8192
